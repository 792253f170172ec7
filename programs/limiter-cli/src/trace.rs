//! Streaming readers for traces, which have one operation per row.
//!
//! A trace is a CSV file with a header row, or the access log of a web server. Memory is bounded by the longest
//! accepted row, [`MAX_ROW`] bytes, regardless of the length of the trace.

mod combined;
mod csv;
mod detect;
mod lines;
mod row;
mod time;

use std::io::{BufReader, Chain, Cursor, Read};

use combined::CombinedRows;
use csv::CsvRows;

pub(crate) use row::shown;
pub use row::{Action, Format, Malformed, Row};
pub use time::{parse_access_log_time, parse_at};

/// A row's maximum length in bytes. A longer row is malformed.
pub const MAX_ROW: usize = 16 << 20;

/// Reads the rows of a trace.
#[derive(Debug)]
pub struct Trace<R> {
    /// The part read by the detection, then the rest.
    input: BufReader<Chain<Cursor<Vec<u8>>, R>>,
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
    /// [`Malformed`] if the content is neither, if it is compressed, or if the header row lacks a column. Any error of
    /// the input.
    pub fn new(mut input: R, format: Option<Format>) -> anyhow::Result<Self> {
        const BUFFER: usize = 128 << 10;
        let (head, format) = detect::detect(&mut input, format)?;
        let mut input = BufReader::with_capacity(BUFFER, head.chain(input));
        let rows = match format {
            Format::Csv => Rows::Csv(CsvRows::new(&mut input)?),
            Format::Combined => Rows::Combined(CombinedRows::default()),
        };
        Ok(Self { input, rows })
    }

    /// Returns the line of the latest row, counted from 1.
    pub const fn line(&self) -> u64 {
        match &self.rows {
            Rows::Csv(rows) => rows.line(),
            Rows::Combined(rows) => rows.line(),
        }
    }

    /// Returns the next row, in the order of the input; `None` at its end. After a skippable [`Malformed`] row,
    /// continues with the row after it.
    ///
    /// # Errors
    /// [`Malformed`] for a malformed row. If reading the input fails.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "the row borrows from the reader, which an iterator's cannot"
    )]
    pub fn next(&mut self) -> Option<anyhow::Result<Row<'_>>> {
        match &mut self.rows {
            Rows::Csv(rows) => rows.next(&mut self.input),
            Rows::Combined(rows) => rows.next(&mut self.input),
        }
    }
}
