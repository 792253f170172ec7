//! A call of a case, and the log that it is on.

use limiter_core::store::At;
use limiter_core::{Name, Timestamp};

use crate::case::{Step, Verb};

/// A log, as the numbers of its limiter's name and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogId {
    pub(crate) name: u8,
    pub(crate) key: u8,
}

impl LogId {
    /// Returns the default name. It is the same in every run, because the process never frees a name.
    pub(crate) fn name(self) -> Name {
        match self.name {
            0 => Name::new("conformance"),
            name => Name::new(&format!("conformance:{name}")),
        }
    }
}

/// A step, with the meaning of its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) step: Step,
    pub(crate) log: LogId,
    /// The index of the policy.
    pub(crate) policy: usize,
    /// The index of the limiter's default policy, if there is a limiter.
    pub(crate) limiter_policy: Option<usize>,
    pub(crate) at: At,
    /// The time at which the call happened, by the caller or by the store's clock.
    pub(crate) time: Timestamp,
}

impl Call {
    /// Returns a call without a limiter.
    pub(crate) fn new(verb: Verb, log: LogId, policy: usize, at: At) -> Self {
        Self {
            step: Step::new(verb, 1),
            log,
            policy,
            limiter_policy: None,
            at,
            time: Timestamp::EPOCH,
        }
    }

    pub(crate) fn reset(log: LogId, at: At) -> Self {
        Self::new(Verb::Reset, log, 0, at)
    }

    /// Returns the call after it happened: when the caller said, or when the store's clock stated this time.
    pub(crate) fn happened(mut self, stated: Timestamp) -> Self {
        self.time = match self.at {
            At::Given(given) => given,
            At::StoreClock => stated,
        };
        self
    }
}
