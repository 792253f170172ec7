//! A sequence of operations as data.

use std::fmt;

use limiter_core::store::{EntryId, Mode};
use limiter_core::{Counting, Policy, Timestamp};

/// A sequence of operations on a few keys through a few limiters on one store.
#[derive(Clone, PartialEq, Eq)]
pub struct Case {
    /// The policies that the operations choose from. Without any, a policy that covers every entry.
    pub policies: Vec<Policy>,
    /// The limiters that the operations come through. Without any, operations have no limiter.
    pub limiters: Vec<CaseLimiter>,
    /// The time before the first step, in microseconds.
    pub start: u64,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Case {
    /// Returns the time of each step.
    pub(crate) fn times(&self) -> Vec<Timestamp> {
        let mut now = Timestamp::from_micros_saturating(self.start);
        let time = |step: &Step| {
            now = Timestamp::from_micros_saturating(
                now.as_micros().saturating_add_signed(step.after),
            );
            now
        };
        self.steps.iter().map(time).collect()
    }

    /// Returns the keys that the steps use.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u8> {
        self.steps.iter().filter_map(|step| match step.operation {
            Operation::Run { on, .. } | Operation::Reset { on } => Some(on.key),
            Operation::Settle { on, .. } => on.map(|on| on.key),
        })
    }

    /// Returns the case with only some of its steps. Drops steps that name entries from removed steps. Times do not
    /// change.
    pub(crate) fn with_steps(&self, is_kept: impl Fn(usize) -> bool) -> Self {
        let mut numbers: Vec<Option<usize>> = Vec::with_capacity(self.steps.len());
        let (mut steps, mut after) = (Vec::new(), 0_i64);
        for (
            number,
            &Step {
                after: more,
                mut operation,
            },
        ) in self.steps.iter().enumerate()
        {
            after = after.saturating_add(more);
            let mut stays = is_kept(number);
            if let Operation::Settle { step, .. }
            | Operation::Run {
                id: Some(CaseId::EntryOf(step)),
                ..
            } = &mut operation
            {
                match numbers.get(*step).copied().flatten() {
                    Some(new) => *step = new,
                    None => stays = false,
                }
            }
            numbers.push(stays.then_some(steps.len()));
            if stays {
                steps.push(Step {
                    after: std::mem::take(&mut after),
                    operation,
                });
            }
        }
        Self {
            steps,
            ..self.clone()
        }
    }
}

/// A limiter of a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseLimiter {
    /// The number of its name. Limiters with the same number share their logs.
    pub name: u8,
    /// The default policy, modulo the number of the case's policies. `None` means operations without a limiter.
    pub policy: Option<u8>,
}

impl CaseLimiter {
    /// Operations without a limiter.
    pub const NONE: Self = Self {
        name: 0,
        policy: None,
    };
}

/// A step of a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far time advances before the operation, in microseconds. Negative values step the clock back.
    pub after: i64,
    /// The operation.
    pub operation: Operation,
}

/// The operation of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// An acquire, a peek or a record.
    Run {
        /// Whether it acquires, peeks or records.
        mode: Mode,
        /// The log, and the limiter that the operation comes through.
        on: Place,
        /// The policy, modulo the number of policies.
        policy: u8,
        /// The cost. It may be refused.
        cost: u64,
        /// The idempotency key.
        id: Option<CaseId>,
    },
    /// A settlement, or a refund if the cost is 0.
    Settle {
        /// The step whose receipt is used, counted from 0. The settlement is skipped if that step returned no
        /// receipt.
        step: usize,
        /// The log to settle on. `None` means the log that issued the receipt.
        on: Option<Place>,
        /// The new cost of the entry.
        cost: u64,
        /// The policy for reporting the usage, modulo the number of policies.
        policy: u8,
    },
    /// Removes a log.
    Reset {
        /// The log.
        on: Place,
    },
}

impl Operation {
    /// Returns an acquire, a peek or a record with the first policy, on the first log, without an id.
    #[must_use]
    pub fn run(mode: Mode, cost: u64) -> Self {
        Self::Run {
            mode,
            on: Place::default(),
            policy: 0,
            cost,
            id: None,
        }
    }
}

/// A log of a [`Case`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The limiter, modulo the number of limiters.
    pub limiter: u8,
    /// The key.
    pub key: u8,
}

/// An idempotency key in a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseId {
    /// An id that no other sequence uses. Each number below 128 differs in one bit from the larger numbers, and in
    /// two bits from the others below 128.
    Fresh(u8),
    /// Exactly this id.
    Exactly(u128),
    /// The store's id of the entry that a step returned. The operation is skipped if that step returned no receipt.
    EntryOf(usize),
}

impl CaseId {
    /// Returns the id in a sequence whose fresh ids derive from `salt`. `entry` returns the entry that a step returned.
    pub(crate) fn entry_id(
        self,
        salt: u128,
        entry: impl Fn(usize) -> Option<EntryId>,
    ) -> Option<EntryId> {
        Some(EntryId::from_u128(match self {
            Self::Fresh(number) => salt ^ 1_u128.checked_shl(number.into()).unwrap_or(0),
            Self::Exactly(id) => id,
            Self::EntryOf(step) => return entry(step),
        }))
    }
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fresh(number) => write!(f, "{number}"),
            Self::Exactly(id) => write!(f, "{id:#034x}"),
            Self::EntryOf(step) => write!(f, "of the entry of step {step}"),
        }
    }
}

pub(crate) fn describe(policy: &Policy) -> String {
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
