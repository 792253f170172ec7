//! What a trace is.

use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, Decision, Error, Limit, OutOfRange, Policy};

use crate::answer::Answer;

/// A sequence of operations on one new key, and the answer to each.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// What it shows.
    pub name: &'static str,
    /// The limits of the limiter's default policy, in order, each as `max` and the window in microseconds.
    pub limits: &'static [(u64, u64)],
    /// What an acquire appends.
    pub counting: Counting,
    /// The operations.
    pub rows: &'static [Row],
}

/// An operation of a [`Trace`] and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The time given with the operation, in microseconds.
    pub at: u64,
    /// What it appends.
    pub mode: Mode,
    /// Its cost.
    pub cost: u64,
    /// The limits of its own policy; empty for the default policy.
    pub own_limits: &'static [(u64, u64)],
    /// Which of the trace's limiters it comes through: 0, or 1 for one with another name on the same store.
    pub limiter: usize,
    /// What is used of each limit, if the trace states it; otherwise empty.
    pub used_each: &'static [u64],
    /// The answer; `None` if the operation is refused because its cost can never fit.
    pub answer: Option<RowAnswer>,
}

/// The decision on a [`Row`]: that of the binding limit, times in microseconds from the operation's time on.
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
    /// None for the traces of this module, whose limits are valid.
    pub fn policy(&self) -> Result<Policy, Error> {
        Ok(policy(self.limits)?.with_counting(self.counting))
    }

    /// Whether every operation comes through one limiter under its default policy, as on the command line.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.rows.iter().all(|row| row.own_limits.is_empty() && row.limiter == 0)
    }
}

impl Row {
    /// Returns the operation's own policy, `None` for the default policy.
    ///
    /// # Errors
    /// None for the traces of this module, whose limits are valid.
    pub fn own_policy(&self) -> Result<Option<Policy>, Error> {
        if self.own_limits.is_empty() { Ok(None) } else { policy(self.own_limits).map(Some) }
    }
}

fn policy(limits: &[(u64, u64)]) -> Result<Policy, Error> {
    let limits = limits.iter().map(|&(max, window)| Limit::new(max, Duration::from_micros(window)));
    Policy::new(limits.collect::<Result<Vec<_>, OutOfRange>>()?)
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
            limit: answer.limit.max(),
            used: answer.used,
            remaining: answer.remaining,
            retry_after: answer.retry_after,
            refill_after: answer.refill_after,
            reset_after: answer.status.reset_after,
        }
    }
}
