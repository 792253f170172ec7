//! Traces: one operation per row, read by streaming.
//!
//! A trace is a CSV file with a header row, or an access log of a web server. Memory is bounded by the longest row that
//! is accepted, [`MAX_ROW`] bytes, whatever the length of the trace.

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
