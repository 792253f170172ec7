//! A sequence of operations as data.

use std::fmt;

use limiter_core::store::Mode;
use limiter_core::{Counting, Policy};

/// A sequence of operations on a few keys through a few limiters on one store.
#[derive(Clone, PartialEq, Eq)]
pub struct Case {
    /// The policies that the operations choose from: at least one.
    pub policies: Vec<Policy>,
    /// The limiters that the operations come through: at least one.
    pub limiters: Vec<CaseLimiter>,
    /// The time before the first step, in microseconds.
    pub start: u64,
    /// What happens.
    pub steps: Vec<Step>,
}

/// A limiter of a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseLimiter {
    /// Its name. Limiters of one number share their logs.
    pub name: u8,
    /// Its default policy, modulo the number of the case's policies. `None` stands for operations without a limiter.
    pub policy: Option<u8>,
}

impl CaseLimiter {
    /// Operations without a limiter.
    pub const NONE: Self = Self { name: 0, policy: None };
}

/// A step of a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far the time moves before the operation, in microseconds; below 0 the clock steps back.
    pub after: i64,
    /// What is asked of the store.
    pub operation: Operation,
}

/// What is asked of a store in a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// An acquire, a peek or a record.
    Run {
        /// What is appended.
        mode: Mode,
        /// Which limiter it comes through, modulo the number of limiters.
        limiter: u8,
        /// Which key.
        key: u8,
        /// Under which policy, modulo the number of policies.
        policy: u8,
        /// The cost, also one that is refused.
        cost: u64,
        /// The caller's id.
        id: Option<u8>,
    },
    /// A settlement, or with a cost of 0 a refund.
    Settle {
        /// Which of the receipts that the sequence got so far, modulo their number. Without a receipt the step is left out.
        receipt: u8,
        /// The entry's new cost.
        cost: u64,
        /// By which policy the usage is reported, modulo the number of policies.
        policy: u8,
    },
    /// Removes a log.
    Reset {
        /// Of which limiter, modulo their number.
        limiter: u8,
        /// Which key.
        key: u8,
    },
}

pub(super) fn describe(policy: &Policy) -> String {
    match policy.counting() {
        Counting::Attempts => format!("{policy} counting attempts"),
        Counting::Admitted => policy.to_string(),
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<String> = self.policies.iter().map(describe).collect();
        f.debug_struct("Case")
            .field("policies", &policies)
            .field("limiters", &self.limiters)
            .field("start", &self.start)
            .field("steps", &self.steps)
            .finish()
    }
}
