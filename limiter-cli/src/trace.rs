//! Streaming readers for traces, which have one operation per row.
//!
//! A trace is a CSV file with a header row, or the access log of a web server. Memory is bounded by the longest
//! accepted row, [`MAX_ROW`] bytes, regardless of the length of the trace.

mod combined;
mod csv;
mod detect;
mod row;
mod source;
mod time;

use std::io::Read;

use combined::CombinedRows;
use csv::CsvRows;
use source::Source;

pub use row::{Action, Format, Malformed, Row, TraceError};
pub use source::MAX_ROW;
pub use time::{parse_access_log_time, parse_at};

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
    /// Starts reading. Without a format, detects it: the first line is a header row or a line of an access log.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] if the content is neither, if it is compressed, or if the header row lacks a column.
    pub fn new(input: R, format: Option<Format>) -> Result<Self, TraceError> {
        let mut source = Source::new(input);
        let rows = match detect::detect(&mut source, format)? {
            Format::Csv => Rows::Csv(CsvRows::new(&mut source)?),
            Format::Combined => Rows::Combined(CombinedRows::default()),
        };
        Ok(Self { source, rows })
    }

    /// Returns the next row, in the order of the input; `None` at its end. After a skippable [`Malformed`] row,
    /// continues with the row after it.
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

    /// Returns the format of the trace.
    #[must_use]
    pub fn format(&self) -> Format {
        match &self.rows {
            Rows::Csv(_) => Format::Csv,
            Rows::Combined(_) => Format::Combined,
        }
    }

    /// Returns the number of bytes consumed from the input.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.source.consumed()
    }
}
