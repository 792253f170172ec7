//! The traces as the files that a command line reads and prints.

use std::fmt::Write;

use limiter_core::store::Mode;

use super::trace::{Row, Trace};

impl Row {
    /// `acquire`, `peek` or `record`.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        match self.mode {
            Mode::Acquire => "acquire",
            Mode::Peek => "peek",
            Mode::Record => "record",
        }
    }
}

impl Trace {
    /// The operations as a CSV file with the columns `at,key,cost,op`, times in seconds.
    #[must_use]
    pub fn csv(&self, key: &str) -> String {
        let mut out = "at,key,cost,op\n".to_owned();
        for row in self.rows {
            let (seconds, micros) = (row.at / 1_000_000, row.at % 1_000_000);
            _ = writeln!(out, "{seconds}.{micros:06},{key},{},{}", row.cost, row.op());
        }
        out
    }

    /// The answers as one JSON object a line, times in microseconds.
    #[must_use]
    pub fn jsonl(&self, key: &str) -> String {
        let mut out = String::new();
        for row in self.rows {
            _ = write!(out, r#"{{"at_us":{},"key":"{key}","op":"{}","cost":{}"#, row.at, row.op(), row.cost);
            _ = match &row.answer {
                None => writeln!(out, r#","error":"cost_exceeds_limit"}}"#),
                Some(answer) => {
                    let retry = answer.retry_after.map_or_else(|| "null".to_owned(), |retry| retry.to_string());
                    _ = write!(out, r#","allowed":{},"limit":{}"#, answer.allowed, answer.limit);
                    _ = write!(out, r#","used":{},"remaining":{}"#, answer.used, answer.remaining);
                    _ = write!(out, r#","retry_after_us":{retry},"refill_after_us":{}"#, answer.refill_after);
                    writeln!(out, r#","reset_after_us":{}}}"#, answer.reset_after)
                }
            };
        }
        out
    }
}
