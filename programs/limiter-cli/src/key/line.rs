//! The output for one log.

use std::io::{self, Write};
use std::time::Duration;

use limiter_core::Decision;
use limiter_core::store::LogInfo;
use serde::Serialize;

use crate::json::{DecisionFields, micros};
use crate::text;

/// The width of the column of names. A longer name shifts the key in its row.
const NAME: usize = 12;

/// The titles and widths of the columns of numbers and durations.
const COLUMNS: [(&str, usize); 6] = [
    ("entries", 9),
    ("cost", 12),
    ("bytes", 10),
    ("expires after", 14),
    ("remaining", 12),
    ("retry after", 14),
];

/// The output for one log, with fields in the order of the JSON.
#[derive(Debug, Default, Serialize)]
pub(super) struct Line {
    /// The name of the limiter.
    pub(super) name: String,
    /// The key. `None` if the store holds only its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// The digest of the key, if the store holds only the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<Box<str>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) log: Option<LogFields>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) decided: Option<DecisionFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct LogFields {
    entries: u64,
    cost: u64,
    #[serde(rename = "oldest_us")]
    oldest: u64,
    #[serde(rename = "newest_us")]
    newest: u64,
    /// `None` if the log never expires. Limiters always set an expiry.
    expires_after_us: Option<u64>,
    bytes: u64,
}

impl From<LogInfo> for LogFields {
    fn from(info: LogInfo) -> Self {
        Self {
            entries: info.entries,
            cost: info.cost,
            oldest: info.oldest.as_micros(),
            newest: info.newest.as_micros(),
            expires_after_us: info.expires_in.map(micros),
            bytes: info.bytes,
        }
    }
}

impl Line {
    pub(super) fn known(
        name: String,
        key: String,
        log: Option<LogInfo>,
        decision: Option<&Decision>,
    ) -> Self {
        let log = log.map(LogFields::from);
        let decided = decision.map(DecisionFields::from);
        Self {
            name,
            key: Some(key),
            log,
            decided,
            ..Self::default()
        }
    }

    /// Writes the column headings.
    pub(super) fn write_head(out: &mut impl Write, limits: bool) -> io::Result<()> {
        write_cells(
            out,
            limits,
            COLUMNS.map(|(title, _)| title.to_owned()),
            "name",
            "key",
        )
    }

    pub(super) fn write_row(&self, out: &mut impl Write, limits: bool) -> io::Result<()> {
        let number = |number: Option<u64>| number.map_or("-".to_owned(), text::grouped);
        let log = self.log.as_ref();
        let decided = self.decided.as_ref();
        let cells = [
            number(log.map(|log| log.entries)),
            number(log.map(|log| log.cost)),
            number(log.map(|log| log.bytes)),
            log.map_or("-".to_owned(), |log| {
                log.expires_after_us
                    .map_or("never".to_owned(), text::duration)
            }),
            number(decided.map(|decided| decided.remaining)),
            decided
                .and_then(|decided| decided.retry_after_us)
                .map_or("-".to_owned(), text::duration),
        ];
        let key = match (&self.key, &self.sha256) {
            (Some(key), _) if self.error.is_some() => format!("{key} (not a log)"),
            (Some(key), _) => key.clone(),
            (None, digest) => format!("(SHA-256 {})", digest.as_deref().unwrap_or_default()),
        };
        write_cells(out, limits, cells, &self.name, &key)
    }
}

/// Writes a row's cells: [`COLUMNS`], the last two only with limits, then a name and a key.
fn write_cells(
    out: &mut impl Write,
    limits: bool,
    cells: [String; 6],
    name: &str,
    key: &str,
) -> io::Result<()> {
    for ((_, width), cell) in COLUMNS.iter().zip(cells).take(if limits { 6 } else { 4 }) {
        write!(out, "{cell:>width$} ")?;
    }
    writeln!(out, " {name:<NAME$}  {key}")
}

/// Writes a page of text about one log.
pub(super) fn write_page(
    out: &mut impl Write,
    (name, key): (&str, &str),
    log: Option<LogInfo>,
    decision: Option<&Decision>,
) -> io::Result<()> {
    writeln!(out, "name           {name}")?;
    writeln!(out, "key            {key}")?;
    match log {
        None => writeln!(out, "log            none")?,
        Some(log) => {
            let time = |at| text::date_time(at, text::is_relative(at));
            writeln!(out, "entries        {}", text::grouped(log.entries))?;
            writeln!(out, "cost           {}", text::grouped(log.cost))?;
            writeln!(out, "oldest         {}", time(log.oldest))?;
            writeln!(out, "newest         {}", time(log.newest))?;
            writeln!(
                out,
                "expires after  {}",
                log.expires_in.map_or("never".to_owned(), duration)
            )?;
            writeln!(out, "bytes          {}", text::grouped(log.bytes))?;
        }
    }
    let Some(decision) = decision else {
        return Ok(());
    };
    for limit in decision.limits().iter() {
        let used = text::grouped(limit.used());
        let remaining = text::grouped(limit.remaining());
        writeln!(
            out,
            "limit          {}: {used} used, {remaining} remaining",
            limit.limit()
        )?;
    }
    let behind = decision.clock_behind();
    if behind > Duration::from_secs(1) {
        writeln!(
            out,
            "clock          the server's is {} behind the newest entry, and all waits include that",
            duration(behind)
        )?;
    }
    match decision.retry_after() {
        None => writeln!(out, "a request      would be allowed"),
        Some(after) => writeln!(
            out,
            "a request      would be denied, retry after {}",
            duration(after)
        ),
    }
}

fn duration(time: Duration) -> String {
    text::duration(micros(time))
}
