//! The entries of one log as a value: what a backend over a key-value store loads, changes and saves.

mod bytes;

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use crate::facts::{Entry, Facts, LogFacts, Outcome, SettlementFacts, Usage};
use crate::limit::Limit;
use crate::op::{At, EntryId, Op};
use crate::per_limit::PerLimit;
use crate::policy::Policy;
use crate::range::MAX_COST;
use crate::settlement::Settlement;
use crate::time::Timestamp;

/// The entries of one log, with the algorithm of the [store contract](crate::WindowStore).
///
/// A backend over anything that can load and save bytes atomically is these lines, inside a transaction or a
/// compare-and-swap loop:
///
/// ```
/// # use limiter_core::{Error, Timestamp};
/// # use limiter_core::store::{Facts, Log, Op};
/// # fn example(op: &Op<'_>, saved: Option<Vec<u8>>, save: impl FnOnce(Vec<u8>), now: Timestamp) -> Result<Facts, Error> {
/// let mut log = saved.map_or(Ok(Log::new()), |bytes| Log::from_bytes(&bytes))?;
/// let facts = log.apply(op, now);
/// save(log.to_bytes()); // to be deleted at `log.expires_at()`
/// # Ok(facts) }
/// ```
///
/// It holds 40 bytes an entry. Usage takes time logarithmic in the number of entries; an operation with an idempotency key
/// and a settlement take linear time, as loading and saving do.
#[derive(Clone)]
pub struct Log {
    /// Oldest first.
    entries: VecDeque<Logged>,
    /// The upper half of this log's entry ids, so that a receipt of another log, or of this one before a reset, names nothing.
    prefix: u64,
    /// The lower half of the next entry's id.
    next: u64,
    /// The cost of all entries that were dropped from the front, modulo 2^64.
    dropped: u64,
    expires_at: Timestamp,
}

#[derive(Clone, Copy)]
struct Logged {
    at: Timestamp,
    /// The cost of this entry and all before it, modulo 2^64.
    total: u64,
    number: u64,
    id: Option<EntryId>,
    admitted: bool,
}

/// A time given by the caller says nothing about the store's clock, so a log is kept this much longer.
const GIVEN_TIME_GRACE: Duration = Duration::from_secs(60);

impl Log {
    /// Returns an empty log.
    #[must_use]
    pub fn new() -> Self {
        // The keys of `RandomState` come from the operating system.
        let prefix = RandomState::new().hash_one("log");
        Self { entries: VecDeque::new(), prefix, next: 0, dropped: 0, expires_at: Timestamp::EPOCH }
    }

    /// Applies an operation, which [`Op::checked`] has passed. `now` is the store's clock, read inside the transaction; an
    /// operation with a given time uses it for the expiry only.
    pub fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let (time, retention) = (self.time(op.at, now), op.retention());
        let repeated = op.id.and_then(|id| {
            let found = self.entries.iter().find(|entry| entry.id == Some(id))?;
            retention.window.counts(found.at, time).then_some(*found)
        });
        if let Some(original) = repeated {
            let outcome = Outcome::Repeated(self.entry(&original));
            return Facts { admitted: original.admitted, outcome, log: self.facts(op.policy, op.cost, time) };
        }
        let fits = |limit: &Limit| self.used(limit, time).saturating_add(op.cost) <= limit.max();
        let admitted = op.policy.limits().iter().all(fits);
        if !op.appends(admitted) {
            return Facts { admitted, outcome: Outcome::Nothing, log: self.facts(op.policy, op.cost, time) };
        }
        let appended =
            Logged { at: time, total: self.total().wrapping_add(op.cost), number: self.next, id: op.id, admitted };
        self.next = self.next.wrapping_add(1);
        self.entries.push_back(appended);
        self.drop_front(self.first_from(retention.window.edge(time)));
        self.drop_beyond(retention.max);
        let told = if let At::Given(given) = op.at { given } else { now };
        let grace = if op.at == At::StoreClock { Duration::ZERO } else { GIVEN_TIME_GRACE };
        let kept = Duration::from_micros(time.micros_since(told)) + retention.window.as_duration() + grace;
        self.expires_at = now.saturating_add(kept);
        let outcome = Outcome::Appended(self.entry(&appended));
        Facts { admitted, outcome, log: self.facts(op.policy, op.cost, time) }
    }

    /// Replaces the cost of one entry, or removes the entry. `now` is the store's clock.
    pub fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> SettlementFacts {
        let (time, receipt) = (self.time(settlement.at, now), settlement.receipt);
        let is_named = |entry: &Logged| self.entry(entry) == Entry { id: receipt.entry(), at: receipt.at() };
        let found = self.entries.iter().position(is_named).filter(|_| !receipt.has_left(time));
        if let Some(i) = found {
            let change = settlement.cost.wrapping_sub(self.cost(i));
            self.entries.range_mut(i..).for_each(|entry| entry.total = entry.total.wrapping_add(change));
            if settlement.cost == 0 {
                self.entries.remove(i);
            }
            self.drop_beyond(MAX_COST);
        }
        SettlementFacts { applied: found.is_some(), log: self.facts(settlement.policy, 0, time) }
    }

    /// Returns the time, by the store's clock, from which the store may forget the log; `None` if it is empty.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        (!self.is_empty()).then_some(self.expires_at)
    }

    /// Returns how many entries there are, also those that count nowhere and were not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry. A store need not keep an empty log.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The time of an operation, never before the newest entry.
    fn time(&self, at: At, now: Timestamp) -> Timestamp {
        let told = if let At::Given(given) = at { given } else { now };
        self.entries.back().map_or(told, |newest| newest.at.max(told))
    }

    fn entry(&self, logged: &Logged) -> Entry {
        Entry { id: EntryId::from_u128(u128::from(self.prefix) << 64 | u128::from(logged.number)), at: logged.at }
    }

    /// The cost of all entries there ever were, modulo 2^64.
    fn total(&self) -> u64 {
        self.total_before(self.entries.len())
    }

    fn total_before(&self, i: usize) -> u64 {
        i.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(self.dropped, |entry| entry.total)
    }

    fn cost(&self, i: usize) -> u64 {
        self.total_before(i + 1).wrapping_sub(self.total_before(i))
    }

    /// The cost of the entries from the `i`-th on. At most the newest ones that reach 2^52 are kept, so it is exact.
    fn cost_from(&self, i: usize) -> u64 {
        self.total().wrapping_sub(self.total_before(i))
    }

    /// The index of the first entry at or after a time.
    fn first_from(&self, at: Timestamp) -> usize {
        self.entries.partition_point(|entry| entry.at < at)
    }

    fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        self.cost_from(self.first_from(limit.window().edge(now)))
    }

    fn drop_front(&mut self, count: usize) {
        self.dropped = self.total_before(count);
        self.entries.drain(..count);
    }

    /// Drops the entries older than the newest ones that together reach `max`.
    fn drop_beyond(&mut self, max: u64) {
        let excess = self.cost_from(0).saturating_sub(max);
        // Without the entry with which the excess is exceeded, the others would not reach `max`.
        self.drop_front(self.reaching(0, excess + 1).unwrap_or(0));
    }

    /// The first entry with which the entries from `start` on hold at least `cost`.
    fn reaching(&self, start: usize, cost: u64) -> Option<usize> {
        let before = self.total_before(start);
        let (mut low, mut high) = (start, self.entries.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.total_before(middle + 1).wrapping_sub(before) < cost { low = middle + 1 } else { high = middle }
        }
        (low < self.entries.len()).then_some(low)
    }

    fn facts(&self, policy: &Policy, cost: u64, now: Timestamp) -> LogFacts {
        let usage = policy.limits().iter().map(|limit| {
            let start = self.first_from(limit.window().edge(now));
            let used = self.cost_from(start);
            let frees =
                |cost| self.reaching(start, cost).and_then(|i| self.entries.get(i)).map_or(now, |entry| entry.at);
            Usage {
                used,
                oldest: frees(used.saturating_sub(limit.max()).saturating_add(1)),
                blocker: frees(used.saturating_add(cost).saturating_sub(limit.max())),
            }
        });
        let usage: Vec<Usage> = usage.collect();
        LogFacts {
            now,
            newest: self.entries.back().map(|newest| newest.at),
            usage: PerLimit::from_slice(&usage).unwrap_or_else(|| PerLimit::one(Usage::default())),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

/// Two logs are equal if they hold the same entries under the same ids, and expire at the same time.
impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl Eq for Log {}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().enumerate().map(|(i, entry)| (entry.at.as_micros(), self.cost(i)));
        f.debug_struct("Log").field("entries", &entries.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}
