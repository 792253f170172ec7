//! The decisions while the store is down.

use std::time::Duration;

use limiter_core::internal::Moment;
use limiter_core::store::{
    Change, Facts, JointOp, Log, LogFacts, Mode, Op, Outcome, Settlement, SettlementFacts, Usage,
};
use limiter_core::{Limit, PerLimit, Timestamp};

use super::local::Local;

#[derive(Debug)]
pub(crate) enum StandIn {
    /// Nothing: errors are returned.
    Nothing,
    /// A log that is empty, and stays so.
    Open,
    /// A log that is full for this long.
    Closed(Duration),
    /// A local store.
    Local(Local),
}

impl StandIn {
    pub(super) const fn local(&self) -> Option<&Local> {
        if let Self::Local(local) = self {
            Some(local)
        } else {
            None
        }
    }

    /// Returns the facts of operations as one, or of a single one. `None` if there are none for one of them.
    pub(super) fn apply_all(&self, ops: &[JointOp<'_>]) -> Option<Vec<Facts>> {
        match self {
            Self::Nothing => None,
            Self::Open => {
                let now = now();
                Some(ops.iter().map(|joint| uncounted(&joint.op, now)).collect())
            }
            Self::Closed(retry_after) => {
                let now = now();
                let look = |joint: &JointOp<'_>| full(&joint.op.to_peek(), *retry_after, now);
                let alone: Vec<_> = ops.iter().filter_map(look).collect();
                let held = JointOp::held(ops, &alone).zip(ops);
                held.map(|(is_held, joint)| match is_held {
                    true => look(joint),
                    false => full(&joint.op, *retry_after, now),
                })
                .collect()
            }
            Self::Local(local) => Some(local.apply_all(ops)),
        }
    }

    /// Returns the facts of a settlement whose entry is gone. `None` if the entry may be anywhere, or if a slot would be lost without it.
    pub(super) fn settle(&self, settlement: &Settlement<'_>) -> Option<SettlementFacts> {
        match (self, settlement.change) {
            (Self::Open, Change::Cost(_)) => Some(Log::new().settle(settlement, now())),
            _ => None,
        }
    }
}

/// Returns the facts of an operation that counts nowhere, on an empty log.
fn uncounted(op: &Op<'_>, now: Timestamp) -> Facts {
    let empty = Log::new().apply(&op.to_peek(), now);
    let outcome = match op.appends(empty.admitted) {
        true => Outcome::Uncounted,
        false => Outcome::Nothing,
    };
    Facts {
        refundable: false,
        outcome,
        ..empty
    }
}

/// Returns the facts of a log that is full for `retry_after`. `None` for a record: a denial would claim that it counts.
fn full(op: &Op<'_>, retry_after: Duration, now: Timestamp) -> Option<Facts> {
    if op.mode == Mode::Record {
        return None;
    }
    let empty = Log::new().apply(op, now);
    let now = empty.log.now;
    let retry_after = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
    let oldest = |limit: &Limit| {
        let age = limit.window().as_micros().saturating_sub(retry_after);
        Timestamp::from_micros_saturating(now.as_micros().saturating_sub(age))
    };
    let usage = PerLimit::of(op.policy, |limit| {
        let oldest = oldest(limit);
        Usage {
            used: limit.max(),
            oldest,
            blocker: oldest,
        }
    });
    let (outcome, newest) = match op.appends(false) {
        true => (empty.outcome, Some(now)),
        false => {
            let newest = op.policy.limits().iter().map(oldest).max();
            (Outcome::Nothing, newest)
        }
    };
    Some(Facts {
        admitted: false,
        refundable: false,
        outcome,
        log: LogFacts {
            newest,
            usage,
            ..empty.log
        },
    })
}

/// Returns the system's time.
fn now() -> Timestamp {
    Timestamp::from_system_saturating(Moment::now().system)
}
