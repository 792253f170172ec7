//! Access logs of web servers, in the combined or common log format.

use std::io::BufRead;
use std::net::IpAddr;

use limiter_core::Timestamp;

use super::lines::Lines;
use super::row::{Action, Row, malformed, shown};
use super::time::{ACCESS_LOG_TIME, parse_access_log_time};

#[derive(Debug, Default)]
pub(super) struct CombinedRows {
    lines: Lines,
    /// Cached because consecutive lines often have the same time.
    latest: Option<([u8; ACCESS_LOG_TIME], Timestamp)>,
}

impl CombinedRows {
    pub(super) fn next(&mut self, input: &mut impl BufRead) -> Option<anyhow::Result<Row<'_>>> {
        let read = self.lines.read(input)?;
        Some(read.and_then(|()| self.row()))
    }

    /// Returns the line of the latest row.
    pub(super) const fn line(&self) -> u64 {
        self.lines.number
    }

    fn row(&mut self) -> anyhow::Result<Row<'_>> {
        let Self {
            lines: Lines { text, number },
            latest,
        } = self;
        let line = text.trim_ascii_end();
        let wrong = |expected: &str, found| {
            malformed(*number, format!("{expected}, found {}", shown(found)))
        };
        let (head, time) = split(line).ok_or_else(|| {
            let expected = "expected an access log line, as in 192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET / \
                            HTTP/1.1\" 200 12";
            wrong(expected, line)
        })?;
        let key = client(head).ok_or_else(|| {
            let expected = "expected one client address before the identity, as in 192.0.2.7 - - or \
                            example.com:443 192.0.2.7 - -";
            wrong(expected, head.trim_ascii_end())
        })?;
        let at = match &latest {
            Some((text, at)) if text == time => *at,
            _ => {
                let at = parse_access_log_time(time).map_err(|expected| wrong(expected, time))?;
                *latest = Some((*time, at));
                at
            }
        };
        Ok(Row {
            at,
            key,
            action: Action::Acquire,
            cost: 1,
        })
    }
}

/// Splits a line at its time: `address identity user [time] "request"`. A user name may contain spaces and brackets.
/// The time is therefore the first bracket of the right shape that is followed by a request.
pub(super) fn split(line: &[u8]) -> Option<(&[u8], &[u8; ACCESS_LOG_TIME])> {
    const AFTER: &[u8] = b"] \"";
    memchr::memchr_iter(b'[', line).find_map(|at| {
        let (time, rest) = line[at + 1..].split_first_chunk::<ACCESS_LOG_TIME>()?;
        let shape = time[2] == b'/' && time[6] == b'/' && time[11] == b':' && time[20] == b' ';
        (shape && rest.starts_with(AFTER)).then_some((&line[..at], time))
    })
}

/// Returns the client in the part of a line before the time: the word before the identity, which is the first `-`
/// after a word.
///
/// Other words may precede an IP address: a virtual host, a container's name, or the time and host of syslog or docker.
/// A list of forwarded addresses has no client, because the number of trusted proxies is unknown. Nor have two addresses in a row: one
/// may be a balancer's.
fn client(head: &[u8]) -> Option<&[u8]> {
    let mut words = head.split(|b| *b == b' ').filter(|word| !word.is_empty());
    let first = words.next()?;
    let [second, third, fourth] = [0, 1, 2].map(|n| words.clone().nth(n));
    if is_address(first) && !second.is_some_and(is_address) && third.is_some() && fourth.is_none() {
        return Some(first);
    }
    let mut word = first;
    let mut is_first = true;
    for next in words {
        if next == b"-" {
            return (is_address(word) || is_first && is_host_name(word)).then_some(word);
        }
        if word.contains(&b',') || is_address(word) && is_address(next) {
            return None;
        }
        (word, is_first) = (next, false);
    }
    None
}

fn is_address(word: &[u8]) -> bool {
    str::from_utf8(word).is_ok_and(|word| word.parse::<IpAddr>().is_ok())
}

fn is_host_name(word: &[u8]) -> bool {
    let valid = |b: &u8| b.is_ascii_alphanumeric() || b".-_".contains(b);
    word.first().is_some_and(u8::is_ascii_alphanumeric) && word.iter().all(valid)
}
