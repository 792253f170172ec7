//! Comparable forms of decisions, and a second way to compute them.

mod definition;
#[cfg(feature = "conformance")]
pub(crate) mod fields;

use std::time::Duration;

use limiter_core::{Decision, Limit, LimitStatus, Status, Timestamp, Window};

/// The fields of a [`Decision`] on which all stores must agree. Leaves out the store's entry id. Times in
/// microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct Answer {
    pub allowed: bool,
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: Option<u64>,
    pub refill_after: u64,
    pub appended: bool,
    /// When the entry was appended, and how long its receipt is valid.
    pub receipt: Option<(Timestamp, Window)>,
    pub binding: usize,
    /// For each limit, how long it denies the operation; 0 if it does not deny it.
    pub retry_after_each: Vec<u64>,
    pub status: StatusAnswer,
}

/// The fields of a [`Status`]. Times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the status's")]
pub struct StatusAnswer {
    pub at: Timestamp,
    pub reset_after: u64,
    pub binding: usize,
    pub limits: Vec<LimitAnswer>,
}

/// The fields of a [`LimitStatus`] except `retry_after`. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the status's")]
pub struct LimitAnswer {
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    pub refill_after: u64,
    pub reset_after: u64,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<&LimitStatus> for LimitAnswer {
    fn from(limit: &LimitStatus) -> Self {
        Self {
            limit: limit.limit(),
            used: limit.used(),
            remaining: limit.remaining(),
            refill_after: micros(limit.refill_after()),
            reset_after: micros(limit.reset_after()),
        }
    }
}

impl From<&Status> for StatusAnswer {
    fn from(status: &Status) -> Self {
        Self {
            at: status.at(),
            reset_after: micros(status.reset_after()),
            binding: status.binding_index(),
            limits: status.limits().iter().map(LimitAnswer::from).collect(),
        }
    }
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        Self {
            allowed: decision.allowed(),
            limit: decision.limit(),
            used: decision.used(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after().map(micros),
            refill_after: micros(decision.refill_after()),
            appended: decision.appended(),
            receipt: decision.receipt().map(|receipt| (receipt.at(), receipt.window())),
            binding: decision.binding_index(),
            retry_after_each: decision.limits().iter().map(|limit| limit.retry_after().map_or(0, micros)).collect(),
            status: (&decision.status()).into(),
        }
    }
}
