//! Traces: one operation per row, read by streaming.
//!
//! A trace is a CSV file with a header row, or an access log of a web server. Memory is bounded by the longest row that
//! is accepted, [`MAX_ROW`] bytes, whatever the length of the trace.

mod combined;
mod csv;
mod detect;
mod source;
mod time;

use std::fmt;
use std::io::{self, Read};

use limiter_core::Timestamp;

use combined::CombinedRows;
use csv::CsvRows;
use source::Source;

pub use source::MAX_ROW;
pub use time::{parse_access_log_time, parse_at};

/// What a trace looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header row with the columns `at` and `key`, optionally `cost` and `op`; other columns are ignored.
    Csv,
    /// The combined or the common log format of web servers. The key is the client address.
    Combined,
}

/// What a row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take `cost` units if they fit.
    Acquire,
    /// Look whether `cost` units would fit.
    Peek,
    /// Count `cost` units, whether they fit or not.
    Record,
    /// Remove the key's log.
    Reset,
}

impl Action {
    /// The name in the column `op`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Peek => "peek",
            Self::Record => "record",
            Self::Reset => "reset",
        }
    }
}

/// One row of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The row's own time.
    pub at: Timestamp,
    /// Whose log: any bytes.
    pub key: &'a [u8],
    /// What is done.
    pub action: Action,
    /// The units, as the row says: also 0 and more than any limit.
    pub cost: u64,
}

/// A row, or a whole trace, that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line in which the row begins, from 1 on.
    pub line: u64,
    /// What was expected, and what was found.
    pub message: String,
    /// Whether the rows that follow can still be read.
    pub skippable: bool,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for Malformed {}

/// Why there is no next row.
#[derive(Debug)]
pub enum TraceError {
    /// Reading failed.
    Io(io::Error),
    /// The row is malformed.
    Malformed(Malformed),
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "reading the trace: {error}"),
            Self::Malformed(malformed) => malformed.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            // Its text is this error's own.
            Self::Malformed(_) => None,
        }
    }
}

/// Reads the rows of a trace.
#[derive(Debug)]
pub struct Trace<R> {
    source: Source<R>,
    rows: Rows,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per trace")]
enum Rows {
    Csv(CsvRows),
    Combined(CombinedRows),
}

impl<R: Read> Trace<R> {
    /// Begins to read. Without a format it is found out by content: a header row, or a line of an access log.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] if the content is neither, is compressed, or its header row lacks a column.
    pub fn new(input: R, format: Option<Format>) -> Result<Self, TraceError> {
        let mut source = Source::new(input);
        let rows = match detect::detect(&mut source, format)? {
            Format::Csv => Rows::Csv(CsvRows::new(&mut source)?),
            Format::Combined => Rows::Combined(CombinedRows::default()),
        };
        Ok(Self { source, rows })
    }

    /// The next row, in the order of the input; `None` at its end. After a skippable [`Malformed`] row it goes on with
    /// the row after that.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] for a malformed row, [`TraceError::Io`] if reading fails.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "the row borrows from the reader, which an iterator's cannot")]
    pub fn next(&mut self) -> Option<Result<Row<'_>, TraceError>> {
        match &mut self.rows {
            Rows::Csv(rows) => rows.next(&mut self.source),
            Rows::Combined(rows) => rows.next(&mut self.source),
        }
    }

    /// The format of the trace.
    #[must_use]
    pub fn format(&self) -> Format {
        match &self.rows {
            Rows::Csv(_) => Format::Csv,
            Rows::Combined(_) => Format::Combined,
        }
    }

    /// How many bytes of the input have been consumed.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.source.consumed()
    }
}

fn malformed(line: u64, message: impl Into<String>) -> TraceError {
    TraceError::Malformed(Malformed { line, message: message.into(), skippable: true })
}

fn unreadable(line: u64, message: impl Into<String>) -> TraceError {
    TraceError::Malformed(Malformed { line, message: message.into(), skippable: false })
}

/// Bytes of the input as an error shows them: printable, and not too many.
fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]);
    let dots = if bytes.len() > MOST { "…" } else { "" };
    format!("\"{}{dots}\"", text.escape_debug())
}
