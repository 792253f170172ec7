//! Properties that hold for any input. The fuzz targets share them with the test of the inputs next to this file.

#![allow(dead_code, reason = "each user needs only some of it")]

use std::io::Read;

use limiter_cli::trace::{Format, Malformed, Trace, parse_access_log_time, parse_at};
use limiter_core::{Limit, Policy, Timestamp, Window};

/// Text that parses as a limit, window or policy prints as text that parses to the same value. Other text gives a
/// short error, regardless of its length.
pub(crate) fn limits(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match text.parse::<Limit>() {
        Ok(limit) => assert_eq!(
            limit.to_string().parse::<Limit>().unwrap(),
            limit,
            "{text:?}"
        ),
        Err(error) => assert!(error.to_string().len() < 3_000, "{text:?}: {error}"),
    }
    if let Ok(window) = text.parse::<Window>() {
        assert_eq!(
            window.to_string().parse::<Window>().unwrap(),
            window,
            "{text:?}"
        );
    }
    match text.parse::<Policy>() {
        Ok(policy) => assert_eq!(
            policy.to_string().parse::<Policy>().unwrap(),
            policy,
            "{text:?}"
        ),
        Err(error) => assert!(error.to_string().len() < 3_000, "{text:?}: {error}"),
    }
}

/// Every format reads to its end, or to an error that cannot be skipped. Rows and line numbers stay within the input
/// and do not depend on the sizes of the reads.
pub(crate) fn traces(input: &[u8]) {
    for format in [None, Some(Format::Csv), Some(Format::Combined)] {
        let mut whole = input;
        let mut trickle = Trickle(input);
        assert_eq!(
            read(&mut whole, input.len(), format),
            read(&mut trickle, input.len(), format),
            "{format:?}"
        );
    }
    for parse in [parse_at, parse_access_log_time] {
        if let Ok(at) = parse(input) {
            assert!(at <= Timestamp::MAX);
        }
    }
}

fn read(mut input: impl Read, length: usize, format: Option<Format>) -> Vec<String> {
    let mut seen = Vec::new();
    let mut trace = match Trace::new(&mut input, format) {
        Ok(trace) => trace,
        Err(error) => return vec![error.to_string()],
    };
    let mut last_line = 0;
    while let Some(row) = trace.next() {
        match row {
            Ok(row) => {
                assert!(row.at <= Timestamp::MAX && row.key.len() <= length);
                seen.push(format!("{row:?}"));
            }
            Err(error) => {
                let malformed: Malformed = error.downcast().unwrap();
                assert!(
                    malformed.line > last_line && malformed.line <= length as u64 + 1,
                    "{malformed}"
                );
                assert!(
                    malformed.message.contains("expected") && malformed.message.len() < 1_000,
                    "{malformed}"
                );
                assert!(malformed.skippable, "{malformed}");
                last_line = malformed.line;
                seen.push(malformed.to_string());
            }
        }
        assert!(seen.len() <= length, "more rows than bytes");
    }
    assert!(trace.next().is_none(), "a row after the end");
    assert_eq!(
        input.read(&mut [0]).unwrap(),
        0,
        "the input is not read to its end"
    );
    seen
}

/// A reader that returns a few bytes at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(3);
        self.0.read(&mut buffer[..most])
    }
}
