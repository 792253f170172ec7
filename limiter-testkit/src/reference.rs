//! The reference implementation of the store contract.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use limiter_core::store::{
    At, Change, Changed, Entry, EntryId, Facts, JointFacts, JointOp, LogFacts, LogKey, Mode, Op,
    Outcome, Settlement, SettlementFacts, Usage,
};
use limiter_core::{
    Counting, Decision, Error, Limit, MAX_COST, Name, PerLimit, Policy, SyncStore, Timestamp,
    WindowStore,
};

/// The reference implementation of [`WindowStore`]. Each log is a list of entries that every operation rescans. It
/// never forgets a log. Authors of stores read it first and compare their stores with it. It is too slow for any
/// other use.
#[derive(Debug, Default)]
pub struct ReferenceStore {
    logs: Mutex<Logs>,
}

#[derive(Clone, Debug, Default)]
struct Logs {
    by_key: HashMap<(Name, Vec<u8>), Vec<ReferenceEntry>>,
    /// The number of ids that the store has given to entries.
    ids: u64,
    /// The time of a clock that stands still. `None` for the system's clock.
    clock: Option<Timestamp>,
}

/// An entry of a log in a [`ReferenceStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceEntry {
    /// The store's entry id, which is never reused.
    pub id: EntryId,
    /// The caller's id (the idempotency key).
    pub callers_id: Option<EntryId>,
    /// The time at which the entry counts.
    pub at: Timestamp,
    /// The cost.
    pub cost: u64,
    /// Whether it fitted the operation's policy when it was appended.
    pub admitted: bool,
    /// Whether it also fitted the limiter's default policy.
    pub refundable: bool,
    /// Whether a renewal has moved it.
    pub is_renewed: bool,
}

impl ReferenceEntry {
    fn entry(&self) -> Entry {
        Entry {
            id: self.id,
            at: self.at,
        }
    }
}

impl ReferenceStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a log's entries, oldest first.
    #[must_use]
    pub fn entries(&self, log: LogKey<'_>) -> Vec<ReferenceEntry> {
        self.logs()
            .by_key
            .get(&owned(log))
            .cloned()
            .unwrap_or_default()
    }

    /// Stops the store's clock at this time.
    #[cfg(feature = "conformance")]
    pub(crate) fn stop_clock(&self, at: Timestamp) {
        self.logs().clock = Some(at);
    }

    fn logs(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies the logs.
impl Clone for ReferenceStore {
    fn clone(&self) -> Self {
        Self {
            logs: Mutex::new(self.logs().clone()),
        }
    }
}

fn owned(log: LogKey<'_>) -> (Name, Vec<u8>) {
    (log.name, log.key.to_vec())
}

/// Returns an entry's age in microseconds.
fn age(entry: &ReferenceEntry, now: Timestamp) -> u64 {
    now.micros_since(entry.at)
}

fn sum<'a>(entries: impl IntoIterator<Item = &'a ReferenceEntry>) -> u64 {
    entries
        .into_iter()
        .fold(0, |sum, entry| sum.saturating_add(entry.cost))
}

/// Returns the entries that count in a limit's window.
fn counting(log: &[ReferenceEntry], limit: &Limit, now: Timestamp) -> Vec<ReferenceEntry> {
    log.iter()
        .copied()
        .filter(|entry| age(entry, now) < limit.window().as_micros())
        .collect()
}

fn usage(log: &[ReferenceEntry], limit: &Limit, cost: u64, now: Timestamp) -> Usage {
    let entries = counting(log, limit, now);
    let used = sum(&entries);
    let first_that_frees = |room: u64| {
        let found = (0..entries.len()).find(|&i| sum(&entries[..=i]) >= room);
        found.map(|i| entries[i].at).unwrap_or_default()
    };
    Usage {
        used,
        oldest: first_that_frees(used.saturating_sub(limit.max()) + 1),
        blocker: first_that_frees(used.saturating_add(cost).saturating_sub(limit.max())),
    }
}

/// Returns the state of a log at `now`. Waits count from `clock`.
fn log_facts(
    log: &[ReferenceEntry],
    policy: &Policy,
    cost: u64,
    [now, clock]: [Timestamp; 2],
) -> LogFacts {
    let used: Vec<Usage> = policy
        .limits()
        .iter()
        .map(|limit| usage(log, limit, cost, now))
        .collect();
    LogFacts {
        now,
        clock,
        newest: log.last().map(|entry| entry.at),
        usage: PerLimit::from_slice(&used).unwrap_or_else(|| PerLimit::from([Usage::default()])),
    }
}

/// Drops the oldest entries while the remaining ones reach `most`.
fn cap(log: &mut Vec<ReferenceEntry>, most: u64) {
    while !log.is_empty() && sum(&log[1..]) >= most {
        log.remove(0);
    }
}

/// Merges entries after the append of `new` at `now`. The newest entry was at `newest` before. `new_id` returns an id.
fn merge(
    log: &mut Vec<ReferenceEntry>,
    limits: &[Limit],
    (newest, now): (Timestamp, Timestamp),
    new: EntryId,
    mut new_id: impl FnMut() -> EntryId,
) {
    let Some(resolution) = limits.iter().filter_map(Limit::resolution).min() else {
        return;
    };
    let r = resolution.as_micros() as u64;
    let exact = longest_exact(limits);
    let mut merged: Vec<ReferenceEntry> = Vec::new();
    for mut u in log.drain(..) {
        let is_due = match exact {
            0 => u.id == new,
            _ => age(&u, newest) < exact && age(&u, now) >= exact,
        };
        let counts =
            |entry: &ReferenceEntry, limit: &Limit| age(entry, now) < limit.window().as_micros();
        let joins = |v: &mut ReferenceEntry| {
            is_due
                && v.at.as_micros() / r == u.at.as_micros() / r
                && limits
                    .iter()
                    .all(|limit| counts(v, limit) == counts(&u, limit))
        };
        if let Some(v) = merged.pop_if(joins) {
            (u.id, u.callers_id) = (new_id(), None);
            u.cost = u.cost.saturating_add(v.cost).min(MAX_COST);
        }
        merged.push(u);
    }
    *log = merged;
}

/// Returns every limit that a log is kept for: of an operation's policy and of the limiter's.
fn limits_of(own: &Policy, limiter: Option<&Policy>) -> Vec<Limit> {
    let policies = [Some(own), limiter].into_iter().flatten();
    policies.flat_map(Policy::limits).copied().collect()
}

/// Appends an entry, drops what no limit can see, and merges. `new_id` returns an id.
fn append(
    log: &mut Vec<ReferenceEntry>,
    limits: &[Limit],
    entry: ReferenceEntry,
    new_id: impl FnMut() -> EntryId,
) {
    let now = entry.at;
    let windows = limits.iter().map(|limit| limit.window().as_micros());
    let longest = windows.max();
    let largest = limits.iter().map(Limit::max).max();
    let newest = log.last().map_or(now, |newest| newest.at);
    log.push(entry);
    log.retain(|entry| age(entry, now) < longest.unwrap_or(0));
    cap(log, largest.unwrap_or(0));
    merge(log, limits, (newest, now), entry.id, new_id);
}

/// Returns the time of an operation, and the time from which its waits count.
fn times(at: At, log: &[ReferenceEntry], clock: Timestamp) -> [Timestamp; 2] {
    let clamped = |time| log.iter().map(|entry| entry.at).fold(time, Timestamp::max);
    match at {
        At::Given(given) => [clamped(given); 2],
        At::StoreClock => [clamped(clock), clock],
    }
}

impl Logs {
    fn clock(&self) -> Timestamp {
        let system = || Timestamp::from_system_saturating(SystemTime::now());
        self.clock.unwrap_or_else(system)
    }

    /// Applies an operation when the store's clock shows `clock`.
    fn apply(&mut self, op: &Op<'_>, clock: Timestamp) -> Facts {
        let mut ids = self.ids;
        let log = self.by_key.entry(owned(op.log)).or_default();
        let times = times(op.at, log, clock);
        let now = times[0];
        let limits = limits_of(op.policy, op.limiter_policy);
        let has_id = |entry: &ReferenceEntry| op.id.is_some() && entry.callers_id == op.id;
        let repeats =
            |entry: &&ReferenceEntry| has_id(entry) && age(entry, now) < longest_exact(&limits);
        let repeated = log.iter().find(repeats).copied();
        let fits =
            |limit: &Limit| sum(&counting(log, limit, now)).saturating_add(op.cost) <= limit.max();
        let admitted = repeated.map_or_else(
            || op.policy.limits().iter().all(fits),
            |entry| entry.admitted,
        );
        let refundable = repeated.map_or_else(|| limits.iter().all(fits), |entry| entry.refundable);
        let appends = match op.mode {
            _ if repeated.is_some() => false,
            Mode::Peek => false,
            Mode::Record => true,
            Mode::Acquire => admitted || op.policy.counting() == Counting::Attempts,
        };
        let mut outcome = Outcome::Nothing;
        if let Some(entry) = repeated {
            outcome = Outcome::Repeated {
                entry: entry.entry(),
                cost: entry.cost,
            };
        }
        let mut new_id = || {
            ids += 1;
            EntryId::from_u128(ids.into())
        };
        if appends {
            // An older entry may have the id for longer than it is valid.
            log.iter_mut()
                .filter(|entry| has_id(entry))
                .for_each(|entry| entry.callers_id = None);
            let entry = ReferenceEntry {
                id: new_id(),
                callers_id: op.id,
                at: now,
                cost: op.cost,
                admitted,
                refundable,
                is_renewed: false,
            };
            append(log, &limits, entry, new_id);
            outcome = Outcome::Appended(entry.entry());
        }
        let facts = Facts {
            admitted,
            refundable,
            outcome,
            log: log_facts(log, op.policy, op.cost, times),
        };
        if log.is_empty() {
            self.by_key.remove(&owned(op.log));
        }
        self.ids = ids;
        facts
    }
}

/// Returns the longest window of the limits that are exact, in microseconds. 0 if there is none.
pub(crate) fn longest_exact(limits: &[Limit]) -> u64 {
    let exact = limits.iter().filter(|limit| limit.resolution().is_none());
    exact
        .map(|limit| limit.window().as_micros())
        .max()
        .unwrap_or(0)
}

impl SyncStore for ReferenceStore {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        let mut logs = self.logs();
        let clock = logs.clock();
        logs.apply(op, clock)
    }

    fn apply_all_now(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        let mut logs = self.logs();
        let clock = logs.clock();
        // Applies some operations to a copy.
        let apply = |ops: Vec<Op<'_>>| {
            let mut copy = logs.clone();
            let facts: Vec<Facts> = ops.iter().map(|op| copy.apply(op, clock)).collect();
            (facts, copy)
        };
        let (alone, changed) = apply(ops.iter().map(|joint| joint.op).collect());
        let repeats = |i: usize| matches!(alone[i].outcome, Outcome::Repeated { .. });
        let denying: Vec<_> = (0..ops.len())
            .filter(|&i| ops[i].denies(alone[i].admitted))
            .collect();
        let repeated = denying.iter().find(|&&i| repeats(i));
        let Some(&denier) = repeated.or(denying.first()) else {
            *logs = changed;
            return alone;
        };
        let as_alone = |i: usize| i == denier || ops[i].keeps_charge || repeats(i);
        let op = |i: usize| {
            if as_alone(i) {
                ops[i].op
            } else {
                ops[i].op.to_peek()
            }
        };
        let (facts, changed) = apply((0..ops.len()).map(op).collect());
        *logs = changed;
        facts
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let mut logs = self.logs();
        let clock = logs.clock();
        let mut ids = logs.ids;
        let log = logs.by_key.entry(owned(settlement.log)).or_default();
        let times = times(settlement.at, log, clock);
        let now = times[0];
        let receipt = settlement.receipt;
        let is_named =
            |entry: &ReferenceEntry| entry.id == receipt.entry() && entry.at == receipt.at();
        // An earlier attempt of a renewal may have moved the entry.
        let is_moved = |entry: &ReferenceEntry| match settlement.change {
            Change::Renew { id } => {
                id.is_some()
                    && entry.callers_id == id
                    && entry.is_renewed
                    && entry.at >= receipt.at()
            }
            Change::Cost(_) => false,
        };
        let found = log.iter().position(is_named);
        let found = found.or_else(|| log.iter().position(is_moved));
        let found = found.filter(|_| !receipt.has_expired(now));
        let changed = found.map(|i| {
            let mut entry = log[i];
            let others = sum(log.iter()) - entry.cost;
            let cost_before = entry.cost;
            match settlement.change {
                Change::Cost(0) => _ = log.remove(i),
                Change::Cost(cost) => {
                    let most = MAX_COST.saturating_sub(others).max(cost_before);
                    log[i].cost = cost.min(most);
                }
                Change::Renew { .. } => {
                    log.remove(i);
                    (entry.at, entry.is_renewed) = (now, true);
                    let limits = limits_of(settlement.policy, settlement.limiter_policy);
                    let new_id = || {
                        ids += 1;
                        EntryId::from_u128(ids.into())
                    };
                    append(log, &limits, entry, new_id);
                }
            }
            Changed {
                cost_before,
                entry: entry.entry(),
            }
        });
        let facts = SettlementFacts {
            changed,
            log: log_facts(log, settlement.policy, 0, times),
        };
        if log.is_empty() {
            logs.by_key.remove(&owned(settlement.log));
        }
        logs.ids = ids;
        facts
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.logs().by_key.remove(&owned(log)).is_some()
    }

    fn read_clock(&self) -> Timestamp {
        self.logs().clock()
    }
}

#[async_trait]
impl WindowStore for ReferenceStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.reset_now(log))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        Ok(Some(self.apply_all_now(ops).into_iter().map(Ok).collect()))
    }

    fn identity(&self) -> Option<usize> {
        Some(std::ptr::from_ref(self).addr())
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        Some(self.decide_now(op))
    }
}
