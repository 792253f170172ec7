//! CSV with a header row.

use std::io::{self, BufRead, ErrorKind};

use csv_core::ReadRecordResult;
use limiter_core::Timestamp;

use super::MAX_ROW;
use super::row::{Action, Row, malformed, read_failed, shown, unreadable};
use super::time::parse_at;

/// The maximum number of columns in a row.
const MAX_COLUMNS: usize = 4096;

#[derive(Debug)]
pub(super) struct CsvRows {
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
        let mut record = Record::new();
        let columns = match record.read(input).map_err(|error| read_failed(&error))? {
            RecordRead::Record => Columns::from_header(&record),
            RecordRead::End => Err("found nothing".to_owned()),
            RecordRead::TooLong => Err("found a row that is too long".to_owned()),
            RecordRead::OpenQuote => Err("found a quote that is never closed".to_owned()),
        };
        let columns = columns.map_err(|found| {
            let expected =
                "expected a header row with the columns at and key, optionally cost and op";
            unreadable(record.line.max(1), format!("{expected}: {found}"))
        })?;
        Ok(Self { record, columns })
    }

    #[inline]
    pub(super) fn next(&mut self, input: &mut impl BufRead) -> Option<anyhow::Result<Row<'_>>> {
        match self.record.read(input) {
            Ok(RecordRead::Record) => Some(self.row()),
            Ok(RecordRead::End) => None,
            Ok(RecordRead::TooLong) => {
                let most = format!(
                    "expected a row of at most {MAX_ROW} bytes and {MAX_COLUMNS} columns; is a quote open?"
                );
                Some(Err(malformed(self.record.line, most)))
            }
            Ok(RecordRead::OpenQuote) => Some(Err(malformed(
                self.record.line,
                "expected a closing quote, found the end of the trace",
            ))),
            Err(error) => Some(Err(read_failed(&error))),
        }
    }

    /// Returns the line in which the latest row starts.
    pub(super) const fn line(&self) -> u64 {
        self.record.line
    }

    #[inline]
    fn row(&self) -> anyhow::Result<Row<'_>> {
        let record = &self.record;
        let columns = &self.columns;
        if record.len() != columns.count {
            let text = format!(
                "expected {} columns as in the header, found {}",
                columns.count,
                record.len()
            );
            return Err(malformed(record.line, text));
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
            self.record.line,
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
            find(name)?.ok_or_else(|| format!("found no {name} in {}", shown(header.bytes())))
        };
        Ok(Self {
            at: need("at")?,
            key: need("key")?,
            cost: find("cost")?,
            op: find("op")?,
            count: header.len(),
        })
    }
}

/// Returns `true` if the first row is a header row with the two required columns.
pub(super) fn starts_with_header(mut head: &[u8]) -> bool {
    let mut record = Record::new();
    matches!(record.read(&mut head), Ok(RecordRead::Record))
        && ["at", "key"]
            .iter()
            .all(|name| record.named(name).next().is_some())
}

/// One record and the parser's state. Reuses its buffers.
#[derive(Debug)]
struct Record {
    parser: csv_core::Reader,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    fields: usize,
    /// The line in which the record starts.
    line: u64,
    /// The number of line ends consumed: `\n`, `\r` or `\r\n`.
    line_ends: u64,
    /// The last byte consumed was a `\r`.
    after_return: bool,
}

/// The result of reading a record.
enum RecordRead {
    Record,
    End,
    TooLong,
    OpenQuote,
}

impl Record {
    fn new() -> Self {
        let bytes = vec![0; 1 << 10];
        let ends = vec![0; 16];
        Self {
            parser: csv_core::Reader::new(),
            bytes,
            ends,
            fields: 0,
            line: 0,
            line_ends: 0,
            after_return: false,
        }
    }

    fn len(&self) -> usize {
        self.fields
    }

    #[inline]
    fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.ends[..self.fields].last().copied().unwrap_or(0)]
    }

    /// Returns the columns with this name.
    fn named(&self, name: &str) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(move |&i| {
            self.get(i)
                .trim_ascii()
                .eq_ignore_ascii_case(name.as_bytes())
        })
    }

    fn count_lines(&mut self, consumed: &[u8]) {
        for at in memchr::memchr2_iter(b'\r', b'\n', consumed) {
            let after_return = if at == 0 {
                self.after_return
            } else {
                consumed[at - 1] == b'\r'
            };
            self.line_ends += u64::from(consumed[at] == b'\r' || !after_return);
        }
        self.after_return = consumed
            .last()
            .map_or(self.after_return, |last| *last == b'\r');
    }

    /// Reads the next record, skipping empty lines.
    fn read(&mut self, input: &mut impl BufRead) -> io::Result<RecordRead> {
        let mut started = false;
        let mut written = 0;
        let mut too_long = false;
        self.fields = 0;
        loop {
            let data = match input.fill_buf() {
                Ok(data) => data,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let at_end = data.is_empty();
            if !started {
                let empty = data
                    .iter()
                    .take_while(|byte| matches!(byte, b'\r' | b'\n'))
                    .count();
                if empty > 0 {
                    self.count_lines(&data[..empty]);
                    input.consume(empty);
                    continue;
                }
                if at_end {
                    return Ok(RecordRead::End);
                }
                (started, self.line) = (true, self.line_ends + 1);
            }
            // At the end of the input, a line feed ends the last record unless a quote is open.
            let data = if at_end { &b"\n"[..] } else { data };
            let (result, read, wrote, ended) = self.parser.read_record(
                data,
                &mut self.bytes[written..],
                &mut self.ends[self.fields..],
            );
            if !at_end {
                self.count_lines(&data[..read]);
                input.consume(read);
            }
            written += wrote;
            self.fields += ended;
            match result {
                ReadRecordResult::Record if too_long => return Ok(RecordRead::TooLong),
                ReadRecordResult::Record => return Ok(RecordRead::Record),
                ReadRecordResult::End => return Ok(RecordRead::End),
                ReadRecordResult::InputEmpty if at_end => return Ok(RecordRead::OpenQuote),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.bytes.len() < MAX_ROW => {
                    self.bytes.resize(2 * self.bytes.len(), 0);
                }
                ReadRecordResult::OutputEndsFull if self.ends.len() < MAX_COLUMNS => {
                    self.ends.resize(2 * self.ends.len(), 0);
                }
                // From here on, the record is read only to find its end.
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    (written, self.fields, too_long) = (0, 0, true);
                }
            }
        }
    }
}
