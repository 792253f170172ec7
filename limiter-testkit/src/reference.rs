//! The reference implementation of the store contract.

pub mod merging;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use limiter_core::store::{
    At, Entry, Facts, JointFacts, JointOp, LogFacts, LogKey, Mode, Op, Outcome, Settlement,
    SettlementFacts, Usage,
};
use limiter_core::{
    Counting, Decision, EntryId, Error, Limit, MAX_COST, Name, PerLimit, Policy, SyncStore,
    Timestamp, WindowStore,
};

use merging::{Append, Rules, TEN_MINUTES, is_exact};

/// The reference implementation of [`WindowStore`]. Each log is a list of entries that every operation rescans. It
/// never forgets a log. Authors of stores read it first and compare their stores with it. It is too slow for any
/// other use.
#[derive(Debug)]
pub struct ReferenceStore {
    logs: Mutex<Logs>,
    rules: Rules,
}

#[derive(Clone, Debug, Default)]
struct Logs {
    by_key: HashMap<(Name, Vec<u8>), Vec<ReferenceEntry>>,
    /// The number of entries ever appended.
    named: u64,
}

/// An entry of a log in an [`ReferenceStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceEntry {
    /// The store's entry id, which is never reused.
    pub name: EntryId,
    /// The caller's id (the idempotency key).
    pub id: Option<EntryId>,
    /// The time at which the entry counts.
    pub at: Timestamp,
    /// The cost.
    pub cost: u64,
    /// Whether it fitted the operation's policy when it was appended.
    pub admitted: bool,
    /// Whether it fitted the limiter's default policy, too.
    pub refundable: bool,
    /// Whether an entry was named in its own cell of ten minutes, and in the cell before.
    pub marks: [bool; 2],
}

impl ReferenceStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_rules(Rules::CONTRACT)
    }

    /// Returns an empty store that merges by other rules.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rules(rules: Rules) -> Self {
        Self {
            logs: Mutex::default(),
            rules,
        }
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

    /// Replaces the entries of a log.
    #[doc(hidden)]
    pub fn set_entries(&self, log: LogKey<'_>, entries: Vec<ReferenceEntry>) {
        let logs = &mut self.logs().by_key;
        _ = if entries.is_empty() {
            logs.remove(&owned(log))
        } else {
            logs.insert(owned(log), entries)
        };
    }

    fn logs(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ReferenceStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies the logs.
impl Clone for ReferenceStore {
    fn clone(&self) -> Self {
        Self {
            logs: Mutex::new(self.logs().clone()),
            rules: self.rules,
        }
    }
}

fn owned(log: LogKey<'_>) -> (Name, Vec<u8>) {
    (log.name, log.key.to_vec())
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// Returns an entry's age in microseconds.
pub fn age(entry: &ReferenceEntry, now: Timestamp) -> u64 {
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

/// Returns the state of a log.
pub fn log_facts(log: &[ReferenceEntry], policy: &Policy, cost: u64, now: Timestamp) -> LogFacts {
    let used: Vec<Usage> = policy
        .limits()
        .iter()
        .map(|limit| usage(log, limit, cost, now))
        .collect();
    LogFacts {
        now,
        newest: log.last().map(|entry| entry.at),
        usage: PerLimit::from_slice(&used).unwrap_or_else(|| PerLimit::from([Usage::default()])),
    }
}

/// Drops the oldest entries while the remaining ones reach `most`.
pub fn cap(log: &mut Vec<ReferenceEntry>, most: u64) {
    while !log.is_empty() && sum(&log[1..]) >= most {
        log.remove(0);
    }
}

fn time(at: At, log: &[ReferenceEntry]) -> Timestamp {
    let time = match at {
        At::Given(given) => given,
        At::StoreClock => Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::EPOCH),
    };
    log.iter().map(|entry| entry.at).fold(time, Timestamp::max)
}

impl SyncStore for ReferenceStore {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        let mut logs = self.logs();
        let mut named = logs.named;
        let log = logs.by_key.entry(owned(op.log)).or_default();
        let now = time(op.at, log);
        // Every limit that the log is kept for: of the operation's policy and of the limiter's.
        let limits = (Rules::CONTRACT.limits)(op);
        let longest = limits
            .iter()
            .map(|limit| limit.window().as_micros())
            .max()
            .unwrap_or(0);
        let largest = limits.iter().map(Limit::max).max().unwrap_or(0);
        let id_for = if is_exact(&limits) {
            longest
        } else {
            longest.min(TEN_MINUTES)
        };

        let has_id = |entry: &ReferenceEntry| op.id.is_some() && entry.id == op.id;
        let repeated = log
            .iter()
            .find(|entry| has_id(entry) && age(entry, now) < id_for)
            .copied();
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
            outcome = Outcome::Repeated(Entry {
                id: entry.name,
                at: entry.at,
            });
        }
        let mut name = || {
            named += 1;
            EntryId::from_u128(named.into())
        };
        if appends {
            // An older entry may have the id for longer than it is valid.
            log.iter_mut()
                .filter(|entry| has_id(entry))
                .for_each(|entry| entry.id = None);
            let (id, cost, marks) = (op.id, op.cost, [false; 2]);
            let mut entry = ReferenceEntry {
                name: name(),
                id,
                at: now,
                cost,
                admitted,
                refundable,
                marks,
            };
            let before = log.last().map_or(now, |newest| newest.at);
            log.push(entry);
            log.retain(|entry| age(entry, now) < longest);
            cap(log, largest);
            let _ = log.pop();
            entry.marks = self.rules.marks_after(log.last(), now);
            entry.marks[0] |= (self.rules.marks)(op);
            log.push(entry);
            Append {
                op,
                limits: (self.rules.limits)(op),
                before,
                now,
                new: entry,
            }
            .merge(&self.rules, log, name);
            outcome = Outcome::Appended(Entry {
                id: entry.name,
                at: entry.at,
            });
        }
        let facts = Facts {
            admitted,
            refundable,
            outcome,
            log: log_facts(log, op.policy, op.cost, now),
        };
        if log.is_empty() {
            logs.by_key.remove(&owned(op.log));
        }
        logs.named = named;
        facts
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let mut logs = self.logs();
        let log = logs.by_key.entry(owned(settlement.log)).or_default();
        let (now, receipt) = (time(settlement.at, log), settlement.receipt);
        let is_named =
            |entry: &ReferenceEntry| entry.name == receipt.entry() && entry.at == receipt.at();
        let found = log
            .iter()
            .position(is_named)
            .filter(|&i| age(&log[i], now) < receipt.window().as_micros());
        if let Some(i) = found {
            if settlement.cost == 0 {
                log.remove(i);
            } else {
                log[i].cost = settlement.cost;
            }
            cap(log, MAX_COST);
        }
        let facts = SettlementFacts {
            applied: found.is_some(),
            log: log_facts(log, settlement.policy, 0, now),
        };
        if log.is_empty() {
            logs.by_key.remove(&owned(settlement.log));
        }
        facts
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.logs().by_key.remove(&owned(log)).is_some()
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
        let mut logs = self.logs();
        let clock = time(At::StoreClock, &[]);
        // Applies some operations to a copy.
        let apply = |ops: Vec<Op<'_>>| {
            let copy = Self {
                logs: Mutex::new(logs.clone()),
                rules: self.rules,
            };
            let at = |op: &Op<'_>| if let At::Given(at) = op.at { at } else { clock };
            let facts: Vec<Facts> = ops
                .iter()
                .map(|op| copy.apply_now(&op.at(at(op))))
                .collect();
            let changed = copy.logs().clone();
            (facts, changed)
        };
        let (alone, changed) = apply(ops.iter().map(|joint| joint.op).collect());
        let Some(denier) = (0..ops.len()).find(|&i| ops[i].denies(alone[i].admitted)) else {
            *logs = changed;
            return Ok(Some(alone.into_iter().map(Ok).collect()));
        };
        let repeats = |i: usize| matches!(alone[i].outcome, Outcome::Repeated(_));
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
        Ok(Some(facts.into_iter().map(Ok).collect()))
    }

    fn identity(&self) -> Option<usize> {
        Some(std::ptr::from_ref(self).addr())
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        Some(self.decide_now(op))
    }
}
