//! Sequences of operations as data, their expected results, and the calls that they make on a store.

pub(super) mod call_result;
pub(super) mod caller;
pub(super) mod case;
pub(super) mod mismatch;
pub(super) mod planner;
pub(super) mod transcript;

use std::sync::Arc;

use limiter_core::store::{At, EntryId, LogKey, Mode, Op};
use limiter_core::{Limit, MAX_COST, Name, Policy, Timestamp, Window};

use call_result::CallResult;
use case::{Operation, Place};

/// The calls of a [`Case`](case::Case) on a store, each with its expected result. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The case's policies, followed by a policy that covers every entry.
    pub(crate) policies: Arc<[Policy]>,
    pub(crate) start: Timestamp,
    pub(crate) calls: Vec<Arc<Planned>>,
}

/// A call and its expected answer.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) call: Call,
    pub(crate) expected: CallResult,
    /// The step of the case that the call belongs to. Calls after the end belong to the last step.
    pub(crate) step: usize,
}

/// An operation at a time, with the meaning of its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) log: Log,
    /// The index of the operation's policy.
    pub(crate) policy: usize,
    /// The index of the limiter's default policy, if there is a limiter.
    pub(crate) limiter_policy: Option<usize>,
    pub(crate) at: Timestamp,
    /// Whether `at` is the time of the store's clock. Otherwise, the caller gave it.
    pub(crate) on_clock: bool,
}

impl Call {
    /// Returns a peek at a log, without a limiter.
    pub(crate) fn peek(log: Log, policy: usize, at: Timestamp) -> Self {
        Self {
            operation: Operation::run(Mode::Peek, 1),
            log,
            policy,
            limiter_policy: None,
            at,
            on_clock: false,
        }
    }

    /// Returns a reset of a log.
    pub(crate) fn reset(log: Log, at: Timestamp) -> Self {
        let on = Place {
            limiter: 0,
            key: log.key,
        };
        Self {
            operation: Operation::Reset { on },
            log,
            policy: 0,
            limiter_policy: None,
            at,
            on_clock: false,
        }
    }

    /// Returns the source of the operation's time.
    pub(crate) fn time(&self) -> At {
        if self.on_clock {
            At::StoreClock
        } else {
            At::Given(self.at)
        }
    }

    /// Returns the operation of an acquire, a peek or a record. `entry` returns the id of the entry that a step returned.
    pub(crate) fn op<'a>(
        &self,
        policies: &'a [Policy],
        log: LogKey<'a>,
        salt: u128,
        entry: impl Fn(usize) -> Option<EntryId>,
    ) -> Option<Op<'a>> {
        let Operation::Run { mode, cost, id, .. } = self.operation else {
            return None;
        };
        let mut op = Op::new(mode, log.key, &policies[self.policy])
            .with_name(log.name)
            .with_cost(cost);
        (op.at, op.id) = (self.time(), id.and_then(|id| id.entry_id(salt, entry)));
        op.limiter_policy = self.limiter_policy.map(|policy| &policies[policy]);
        Some(op)
    }
}

/// A log, as the numbers of its limiter's name and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Log {
    pub(crate) name: u8,
    pub(crate) key: u8,
}

impl Log {
    /// Returns the default name. It is the same in every run, because the process never frees a name.
    pub(crate) fn name(self) -> Name {
        match self.name {
            0 => Name::new("conformance"),
            name => Name::new(&format!("conformance:{name}")),
        }
    }
}

/// Returns a policy that covers every entry of a log.
pub(crate) fn everything() -> Policy {
    const MOST: Limit = match Limit::with_window(MAX_COST, Window::MAX) {
        Ok(limit) => limit,
        Err(_) => unreachable!(),
    };
    Policy::from(MOST)
}
