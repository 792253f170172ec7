//! A sequence of operations as data.

use std::fmt;

use limiter_core::{Counting, Mode, Policy};

/// A sequence of operations on a few keys, with the policies that it uses.
#[derive(Clone, PartialEq, Eq)]
pub struct Case {
    /// The policies that the operations choose from: at least one.
    pub policies: Vec<Policy>,
    /// The time before the first step, in microseconds.
    pub start: u64,
    /// What happens.
    pub steps: Vec<Step>,
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
        /// Which key.
        key: u8,
        /// Which of the case's policies, counted round.
        policy: u8,
        /// The cost, also one that is refused.
        cost: u64,
        /// The caller's id.
        id: Option<u8>,
    },
    /// A settlement, or with a cost of 0 a refund.
    Settle {
        /// Which of the receipts that the sequence got so far, counted round; if it got none the step is left out.
        receipt: u8,
        /// The entry's cost from now on.
        cost: u64,
    },
    /// Removes the log of a key.
    Reset {
        /// Which key.
        key: u8,
    },
}

pub(super) fn describe(policy: &Policy) -> String {
    match policy.counts() {
        Counting::Attempts => format!("{policy} counting attempts"),
        _ => policy.to_string(),
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<String> = self.policies.iter().map(describe).collect();
        f.debug_struct("Case")
            .field("policies", &policies)
            .field("start", &self.start)
            .field("steps", &self.steps)
            .finish()
    }
}
