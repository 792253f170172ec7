//! Access logs of web servers, in the combined or common log format.

use std::io::Read;

use limiter_core::Timestamp;

use super::row::{Action, Row, TraceError, malformed, shown};
use super::source::{MAX_ROW, Source};
use super::time::{ACCESS_LOG_TIME, parse_access_log_time};

#[derive(Debug, Default)]
pub(super) struct CombinedRows {
    /// Lines consumed.
    lines: u64,
    /// The length of the line that the last row borrowed.
    lent: usize,
    /// Cached because consecutive lines often have the same time.
    latest: Option<([u8; ACCESS_LOG_TIME], Timestamp)>,
}

impl CombinedRows {
    pub(super) fn next<'a, R: Read>(&mut self, source: &'a mut Source<R>) -> Option<Result<Row<'a>, TraceError>> {
        source.consume(std::mem::take(&mut self.lent));
        loop {
            self.lines += 1;
            match source.line_length() {
                Err(error) => return Some(Err(error.into())),
                Ok(Some(0)) => return None,
                Ok(Some(length)) if source.data()[..length].trim_ascii().is_empty() => source.consume(length),
                Ok(Some(length)) => {
                    self.lent = length;
                    return Some(self.row(&source.data()[..length]));
                }
                Ok(None) => {
                    let error = malformed(self.lines, format!("expected a line of at most {MAX_ROW} bytes"));
                    return Some(Err(source.skip_line().map_or_else(Into::into, |()| error)));
                }
            }
        }
    }

    fn row<'a>(&mut self, line: &'a [u8]) -> Result<Row<'a>, TraceError> {
        let Some((key, time)) = split(line) else {
            let text = "expected an access log line, as in 192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET / \
                        HTTP/1.1\" 200 12";
            return Err(malformed(self.lines, format!("{text}, found {}", shown(line.trim_ascii_end()))));
        };
        let at = match &self.latest {
            Some((text, at)) if text == time => *at,
            _ => {
                let at = parse_access_log_time(time)
                    .map_err(|expected| malformed(self.lines, format!("{expected}, found {}", shown(time))))?;
                self.latest = Some((*time, at));
                at
            }
        };
        Ok(Row { at, key, action: Action::Acquire, cost: 1 })
    }
}

/// Returns the client address and the time of `address identity user [time] "request"`. A user name may contain
/// spaces and brackets. The time is therefore the first bracket of the right shape that is followed by a request.
pub(super) fn split(line: &[u8]) -> Option<(&[u8], &[u8; ACCESS_LOG_TIME])> {
    const AFTER: &[u8] = b"] \"";
    let blank = memchr::memchr(b' ', line)?;
    let brackets = memchr::memchr_iter(b'[', line).filter(|&at| at > blank);
    let time = brackets.filter_map(|at| {
        let (time, rest) = line[at + 1..].split_first_chunk::<ACCESS_LOG_TIME>()?;
        let shape = time[2] == b'/' && time[6] == b'/' && time[11] == b':' && time[20] == b' ';
        (shape && rest.starts_with(AFTER)).then_some(time)
    });
    (blank > 0).then_some(&line[..blank]).zip({ time }.next())
}
