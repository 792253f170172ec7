//! A store that is obviously right.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use limiter_core::{
    At, Counting, Decision, Entry, EntryId, Error, Facts, Limit, MAX_COST, Mode, NowStore, Op, Outcome, PerLimit,
    Settlement, Timestamp, Usage, WindowStore, decide,
};

/// The contract of [`WindowStore`], written for obviousness: a list of entries for each key, rescanned for every
/// question. It never forgets a key. Compare a store with it; do not use it for anything else.
#[derive(Debug, Default)]
pub struct OracleStore(Mutex<Logs>);

#[derive(Debug, Default)]
struct Logs {
    by_key: HashMap<Vec<u8>, Vec<OracleEntry>>,
    named: u64,
}

/// An entry of an oracle's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OracleEntry {
    /// The store's name of the entry, never used twice.
    pub name: EntryId,
    /// The caller's id of the entry.
    pub id: Option<EntryId>,
    /// The time at which it counts.
    pub at: Timestamp,
    /// Its cost.
    pub cost: u64,
    /// Whether it fitted when it was appended.
    pub admitted: bool,
}

impl OracleStore {
    /// A store without logs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The log of a key, oldest entry first.
    #[must_use]
    pub fn entries(&self, key: &[u8]) -> Vec<OracleEntry> {
        self.logs().by_key.get(key).cloned().unwrap_or_default()
    }

    fn logs(&self) -> MutexGuard<'_, Logs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn age(entry: &OracleEntry, now: Timestamp) -> u64 {
    now.as_micros() - entry.at.as_micros()
}

fn sum<'a>(entries: impl IntoIterator<Item = &'a OracleEntry>) -> u64 {
    entries.into_iter().fold(0, |sum, entry| sum.saturating_add(entry.cost))
}

/// The entries that count in a limit's window.
fn counting(log: &[OracleEntry], limit: &Limit, now: Timestamp) -> Vec<OracleEntry> {
    log.iter().copied().filter(|entry| age(entry, now) < limit.window().as_micros()).collect()
}

fn usage(log: &[OracleEntry], limit: &Limit, cost: u64, now: Timestamp) -> Usage {
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

/// Drops the oldest entries for as long as the others together reach `most`.
fn cap(log: &mut Vec<OracleEntry>, most: u64) {
    while !log.is_empty() && sum(&log[1..]) >= most {
        log.remove(0);
    }
}

fn time(at: At, log: &[OracleEntry]) -> Timestamp {
    let told = match at {
        At::Given(given) => given,
        At::StoreClock => Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::EPOCH),
    };
    log.iter().map(|entry| entry.at).fold(told, Timestamp::max)
}

impl NowStore for OracleStore {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        let mut logs = self.logs();
        let named = logs.named + 1;
        let log = logs.by_key.entry(op.key.to_vec()).or_default();
        let now = time(op.at, log);
        let longest = op.policy.limits().iter().map(|limit| limit.window().as_micros()).max().unwrap_or(0);

        let repeated =
            log.iter().copied().find(|entry| op.id.is_some() && entry.id == op.id && age(entry, now) < longest);
        let fits = |limit: &Limit| sum(&counting(log, limit, now)).saturating_add(op.cost) <= limit.max();
        let admitted = repeated.map_or_else(|| op.policy.limits().iter().all(fits), |entry| entry.admitted);
        let appends = match op.mode {
            _ if repeated.is_some() => false,
            Mode::Peek => false,
            Mode::Record => true,
            Mode::Acquire => admitted || op.policy.counts() == Counting::Attempts,
        };
        let mut outcome = Outcome::Nothing;
        if let Some(entry) = repeated {
            outcome = Outcome::Repeated(Entry { id: entry.name, at: entry.at });
        }
        if appends {
            let entry =
                OracleEntry { name: EntryId::from_u128(named.into()), id: op.id, at: now, cost: op.cost, admitted };
            log.push(entry);
            log.retain(|entry| age(entry, now) < longest);
            cap(log, op.policy.limits().iter().map(Limit::max).max().unwrap_or(0));
            outcome = Outcome::Appended(Entry { id: entry.name, at: entry.at });
        }
        let used: Vec<Usage> = op.policy.limits().iter().map(|limit| usage(log, limit, op.cost, now)).collect();
        let facts = Facts {
            now,
            admitted,
            outcome,
            newest: log.last().map(|entry| entry.at),
            usage: PerLimit::from_slice(&used).unwrap_or_else(|| PerLimit::one(Usage::default())),
        };
        if log.is_empty() {
            logs.by_key.remove(op.key);
        }
        logs.named = named;
        facts
    }

    fn decide_now(&self, op: &Op<'_>) -> Decision {
        decide(op, &self.apply_now(op))
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> bool {
        let mut logs = self.logs();
        let Some(log) = logs.by_key.get_mut(settlement.key) else { return false };
        let (now, receipt) = (time(settlement.at, log), settlement.receipt);
        let Some(i) = log.iter().position(|entry| entry.name == receipt.entry() && entry.at == receipt.at()) else {
            return false;
        };
        if age(&log[i], now) >= receipt.window().as_micros() {
            return false;
        }
        if settlement.cost == 0 {
            log.remove(i);
        } else {
            log[i].cost = settlement.cost;
        }
        cap(log, MAX_COST);
        if log.is_empty() {
            logs.by_key.remove(settlement.key);
        }
        true
    }

    fn reset_now(&self, key: &[u8]) -> bool {
        self.logs().by_key.remove(key).is_some()
    }
}

impl WindowStore for OracleStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<bool, Error> {
        Ok(self.settle_now(&settlement))
    }

    async fn reset(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.reset_now(key))
    }
}
