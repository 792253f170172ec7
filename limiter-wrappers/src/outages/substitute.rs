//! Facts in place of those that a store could not give.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use limiter_core::store::{At, Entry, Facts, LogFacts, Op, Outcome, Settlement, SettlementFacts, Usage};
use limiter_core::{EntryId, Limit, PerLimit, Policy, Timestamp};

/// Makes ids for entries that no store holds, so that their receipts name nothing.
#[derive(Debug)]
pub(crate) struct Ids {
    process: u64,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new() -> Self {
        Self { process: RandomState::new().hash_one(std::process::id()) | 1 << 63, next: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> EntryId {
        EntryId::from_u128(u128::from(self.process) << 64 | u128::from(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn entry(&self, op: &Op<'_>, at: Timestamp) -> Entry {
        Entry { id: op.id.unwrap_or_else(|| self.next()), at }
    }
}

/// Returns the time of an operation: the given one, or the system's.
fn time(at: At) -> Timestamp {
    match at {
        At::Given(at) => at,
        At::StoreClock => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_micros_saturating(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
        }
    }
}

/// Returns `f` of each limit.
fn per_limit(policy: &Policy, f: impl Fn(&Limit) -> Usage) -> PerLimit<Usage> {
    let usage: Vec<Usage> = policy.limits().iter().map(f).collect();
    // A policy has at least one limit, and no more than fit.
    PerLimit::from_slice(&usage).unwrap_or(PerLimit::one(Usage::default()))
}

/// Returns the facts of an operation on an empty log.
pub(crate) fn admit(op: &Op<'_>, ids: &Ids) -> Facts {
    let now = time(op.at);
    let admitted = op.policy.limits().iter().all(|limit| op.cost <= limit.max());
    let appends = op.appends(admitted);
    let used = if appends { op.cost } else { 0 };
    Facts {
        admitted,
        outcome: if appends { Outcome::Appended(ids.entry(op, now)) } else { Outcome::Nothing },
        log: LogFacts {
            now,
            newest: appends.then_some(now),
            usage: per_limit(op.policy, |_| Usage { used, oldest: now, blocker: now }),
        },
    }
}

/// Returns the facts of an operation on a log that is full, so that the denial lasts for `retry_after`, or for the longest
/// window if that is shorter.
pub(crate) fn deny(op: &Op<'_>, ids: &Ids, retry_after: Duration) -> Facts {
    let now = time(op.at);
    let retry_after = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
    let expires_then = |limit: &Limit| {
        let age = limit.window().as_micros().saturating_sub(retry_after);
        Timestamp::from_micros_saturating(now.as_micros().saturating_sub(age))
    };
    let usage = per_limit(op.policy, |limit| {
        let oldest = expires_then(limit);
        Usage { used: limit.max(), oldest, blocker: oldest }
    });
    let appends = op.appends(false);
    let newest = if appends { Some(now) } else { op.policy.limits().iter().map(expires_then).max() };
    Facts {
        admitted: false,
        outcome: if appends { Outcome::Appended(ids.entry(op, now)) } else { Outcome::Nothing },
        log: LogFacts { now, newest, usage },
    }
}

/// Returns the facts of a settlement whose entry is gone, on an empty log.
pub(crate) fn not_settled(settlement: &Settlement<'_>) -> SettlementFacts {
    let now = time(settlement.at);
    let usage = per_limit(settlement.policy, |_| Usage { used: 0, oldest: now, blocker: now });
    SettlementFacts { applied: false, log: LogFacts { now, newest: None, usage } }
}
