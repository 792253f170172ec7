//! Traces in CSV.

use std::io::BufRead;

use csv_core::ReadRecordResult;
use limiter_core::Timestamp;

use super::lines::Lines;
use super::row::{Action, Row, malformed, shown, unreadable};
use super::time::parse_at;

/// Reads rows of one line each.
#[derive(Debug)]
pub(super) struct CsvRows {
    lines: Lines,
    record: Record,
    columns: Columns,
}

#[derive(Clone, Copy, Debug)]
struct Columns {
    at: usize,
    key: usize,
    cost: Option<usize>,
    op: Option<usize>,
    count: usize,
}

impl CsvRows {
    /// Reads the header row.
    pub(super) fn new(input: &mut impl BufRead) -> anyhow::Result<Self> {
        let (mut lines, mut record) = (Lines::default(), Record::new());
        let columns = match lines.read(input).transpose()? {
            Some(()) => record.parse(&lines.text).map_err(str::to_owned),
            None => Err("found nothing".to_owned()),
        };
        let columns = columns.and_then(|()| Columns::from_header(&record));
        let columns = columns.map_err(|found| {
            let expected =
                "expected a header row with the columns at and key, optionally cost and op";
            unreadable(lines.number, format!("{expected}: {found}"))
        })?;
        Ok(Self {
            lines,
            record,
            columns,
        })
    }

    #[inline]
    pub(super) fn next(&mut self, input: &mut impl BufRead) -> Option<anyhow::Result<Row<'_>>> {
        Some(match self.lines.read(input)? {
            Ok(()) => match self.record.parse(&self.lines.text) {
                Ok(()) => self.row(),
                Err(text) => Err(malformed(self.lines.number, text)),
            },
            Err(error) => Err(error),
        })
    }

    /// Returns the line of the latest row.
    pub(super) const fn line(&self) -> u64 {
        self.lines.number
    }

    #[inline]
    fn row(&self) -> anyhow::Result<Row<'_>> {
        let record = &self.record;
        let columns = &self.columns;
        if record.ends.len() != columns.count {
            let text = format!(
                "expected {} columns as in the header, found {}",
                columns.count,
                record.ends.len()
            );
            return Err(malformed(self.lines.number, text));
        }
        let at = record.get(columns.at);
        let at: Timestamp = parse_at(at).map_err(|expected| self.wrong("at", expected, at))?;
        let key = record.get(columns.key);
        // Such keys come from a field that is missing, or from a column that was not split.
        if key.is_empty() || memchr::memchr2(b'\r', b'\n', key).is_some() {
            return Err(self.wrong("key", "expected a key of one line", key));
        }
        let cost = match columns.cost.map(|i| record.get(i).trim_ascii()) {
            None | Some(b"") => 1,
            Some(text) => parse_cost(text)
                .ok_or_else(|| self.wrong("cost", "expected a whole number below 2^64", text))?,
        };
        let action = match columns.op.map(|i| record.get(i).trim_ascii()) {
            None | Some(b"" | b"acquire") => Action::Acquire,
            Some(b"peek") => Action::Peek,
            Some(b"record") => Action::Record,
            Some(b"reset") => Action::Reset,
            Some(other) => {
                return Err(self.wrong("op", "expected acquire, peek, record or reset", other));
            }
        };
        Ok(Row {
            at,
            key,
            action,
            cost,
        })
    }

    #[cold]
    fn wrong(&self, column: &str, expected: &str, found: &[u8]) -> anyhow::Error {
        malformed(
            self.lines.number,
            format!("column {column}: {expected}, found {}", shown(found)),
        )
    }
}

fn parse_cost(text: &[u8]) -> Option<u64> {
    // The standard library accepts a plus sign, but a cost has none.
    text.first()?
        .is_ascii_digit()
        .then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

impl Columns {
    fn from_header(header: &Record) -> Result<Self, String> {
        let find = |name: &str| {
            let mut found = header.named(name);
            match (found.next(), found.next()) {
                (_, Some(_)) => Err(format!("found {name} twice")),
                (first, None) => Ok(first),
            }
        };
        let need = |name: &str| {
            find(name)?.ok_or_else(|| format!("found no {name} in {}", shown(&header.bytes)))
        };
        Ok(Self {
            at: need("at")?,
            key: need("key")?,
            cost: find("cost")?,
            op: find("op")?,
            count: header.ends.len(),
        })
    }
}

/// Returns `true` if the first row is a header row with the two required columns.
pub(super) fn starts_with_header(mut head: &[u8]) -> bool {
    let (mut lines, mut record) = (Lines::default(), Record::new());
    matches!(lines.read(&mut head), Some(Ok(())))
        && record.parse(&lines.text).is_ok()
        && ["at", "key"]
            .iter()
            .all(|name| record.named(name).next().is_some())
}

/// The fields of a line. Reuses its buffers.
#[derive(Debug)]
struct Record {
    parser: csv_core::Reader,
    bytes: Vec<u8>,
    /// Where each field ends.
    ends: Vec<usize>,
}

impl Record {
    fn new() -> Self {
        Self {
            // Its default lacks the table of states.
            parser: csv_core::Reader::new(),
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    #[inline]
    fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    /// Returns the columns with this name.
    fn named(&self, name: &str) -> impl Iterator<Item = usize> {
        (0..self.ends.len()).filter(move |&i| {
            self.get(i)
                .trim_ascii()
                .eq_ignore_ascii_case(name.as_bytes())
        })
    }

    /// Reads the fields of a line that is not empty.
    ///
    /// # Errors
    /// The expected value, if a quote is open at the end of the line, or if a carriage return is within it.
    #[inline]
    fn parse(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        // The parser stops before an output is full.
        self.bytes.resize(line.len() + 1, 0);
        self.ends
            .resize(memchr::memchr_iter(b',', line).count() + 2, 0);
        self.parser.reset();
        let (mut read, mut written, mut ended) = (0, 0, 0);
        // A line feed ends the row, unless a quote is open.
        for part in [line, b"\n"] {
            let (result, bytes, wrote, fields) =
                self.parser
                    .read_record(part, &mut self.bytes[written..], &mut self.ends[ended..]);
            (read, written, ended) = (read + bytes, written + wrote, ended + fields);
            if result == ReadRecordResult::Record {
                self.bytes.truncate(written);
                self.ends.truncate(ended);
                return match line.get(read..).unwrap_or_default().trim_ascii() {
                    b"" => Ok(()),
                    _ => Err("expected a row that ends with a line feed, found a carriage return"),
                };
            }
        }
        Err("expected a closing quote in the same line")
    }
}
