//! Worked examples decided by hand. Every backend and every front end returns exactly these results.

mod traces;

use std::fmt::Write;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, Decision, Error, Policy};

use crate::answer::Answer;

pub use traces::{parse, traces};

/// A sequence of operations on one new key, with the result of each.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// The name.
    pub name: &'static str,
    /// The limits of the default policy, such as `"3/1s, 5/5s"`.
    pub limits: &'static str,
    /// Which acquires the policy counts.
    pub counting: Counting,
    /// The operations, in order.
    pub rows: &'static [Row],
}

/// An operation of a [`Trace`] and its result.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The time given with the operation, in microseconds.
    pub at: u64,
    /// Whether it acquires, peeks or records.
    pub mode: Mode,
    /// The cost.
    pub cost: u64,
    /// The limits of the operation's policy. Empty for the default policy.
    pub own_limits: &'static str,
    /// The limiter: 0, or 1 for one with another name on the same store.
    pub limiter: usize,
    /// The usage of each limit. Empty if the trace does not state it.
    pub used_each: &'static [u64],
    /// The result. `None` if the operation is refused because its cost can never fit.
    pub answer: Option<RowAnswer>,
}

/// The decision on a [`Row`], for the binding limit. Times are in microseconds after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct RowAnswer {
    pub allowed: bool,
    /// The maximum of the binding limit.
    pub limit: u64,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: Option<u64>,
    pub refill_after: u64,
    pub reset_after: u64,
}

impl Trace {
    /// Returns the default policy.
    ///
    /// # Errors
    /// Never: the limits of the golden traces are valid.
    pub fn policy(&self) -> Result<Policy, Error> {
        Ok(self.limits.parse::<Policy>()?.with_counting(self.counting))
    }

    /// Returns the operations as a CSV file with the columns `at,key,cost,op`. Times are in seconds.
    #[must_use]
    pub fn csv(&self, key: &str) -> String {
        let mut out = "at,key,cost,op\n".to_owned();
        for row in self.rows {
            let (seconds, micros) = (row.at / 1_000_000, row.at % 1_000_000);
            _ = writeln!(out, "{seconds}.{micros:06},{key},{},{}", row.cost, row.op());
        }
        out
    }

    /// Returns the results as one JSON object per line. Times are in microseconds.
    #[must_use]
    pub fn jsonl(&self, key: &str) -> String {
        let mut out = String::new();
        for row in self.rows {
            _ = write!(
                out,
                r#"{{"at_us":{},"key":"{key}","op":"{}","cost":{}"#,
                row.at,
                row.op(),
                row.cost
            );
            _ = match &row.answer {
                None => writeln!(out, r#","error":"cost_exceeds_limit"}}"#),
                Some(answer) => {
                    let retry = answer
                        .retry_after
                        .map_or_else(|| "null".to_owned(), |retry| retry.to_string());
                    _ = write!(
                        out,
                        r#","allowed":{},"limit":{}"#,
                        answer.allowed, answer.limit
                    );
                    _ = write!(
                        out,
                        r#","used":{},"remaining":{}"#,
                        answer.used, answer.remaining
                    );
                    _ = write!(
                        out,
                        r#","retry_after_us":{retry},"refill_after_us":{}"#,
                        answer.refill_after
                    );
                    writeln!(out, r#","reset_after_us":{}}}"#, answer.reset_after)
                }
            };
        }
        out
    }
}

impl Row {
    /// Returns the operation's policy. `None` for the default policy.
    ///
    /// # Errors
    /// Never: the limits of the golden traces are valid.
    pub fn own_policy(&self) -> Result<Option<Policy>, Error> {
        (!self.own_limits.is_empty())
            .then(|| self.own_limits.parse())
            .transpose()
    }

    /// Returns `acquire`, `peek` or `record`.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        match self.mode {
            Mode::Acquire => "acquire",
            Mode::Peek => "peek",
            Mode::Record => "record",
        }
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

impl From<&Decision> for RowAnswer {
    fn from(decision: &Decision) -> Self {
        Self::from(&Answer::from(decision))
    }
}

impl From<&Answer> for RowAnswer {
    fn from(answer: &Answer) -> Self {
        Self {
            allowed: answer.allowed,
            limit: answer.status.limit().max(),
            used: answer.status.used(),
            remaining: answer.status.remaining(),
            retry_after: answer.retry_after.map(micros),
            refill_after: micros(answer.status.refill_after()),
            reset_after: micros(answer.status.reset_after()),
        }
    }
}
