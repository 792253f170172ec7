//! One log as a value, for backends that load, change and save whole logs.

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

/// The entries of one log, with all operations of the [store contract](crate::WindowStore).
///
/// A backend over a key-value store runs these lines in a transaction or a compare-and-swap loop:
///
/// ```
/// # use limiter_core::{Error, Timestamp};
/// # use limiter_core::store::{Facts, Log, Op};
/// # fn example(op: &Op<'_>, saved: Option<Vec<u8>>, save: impl FnOnce(Vec<u8>), now: Timestamp) -> Result<Facts, Error> {
/// let mut log = saved.map_or(Ok(Log::new()), |bytes| Log::from_bytes(&bytes))?;
/// let facts = log.apply(op, now);
/// save(log.to_bytes()); // may be deleted from `log.expires_at()` on
/// # Ok(facts) }
/// ```
///
/// # Performance
/// Computing usage takes logarithmic time in the number of entries. Loading, saving, settlements and operations with an
/// idempotency key take linear time.
#[derive(Clone)]
pub struct Log {
    /// Oldest first.
    entries: VecDeque<StoredEntry>,
    /// The upper half of this log's entry ids. Random, so a receipt from another log, or from before a reset, matches
    /// nothing.
    prefix: u64,
    /// The lower half of the next entry's id.
    next: u64,
    /// The total cost of the entries dropped from the front, modulo 2^64.
    dropped: u64,
    expires_at: Timestamp,
}

#[derive(Clone, Copy)]
struct StoredEntry {
    at: Timestamp,
    /// The running total up to and including this entry, modulo 2^64.
    total: u64,
    /// The lower half of the entry's id.
    number: u64,
    id: Option<EntryId>,
    admitted: bool,
}

/// A log appended to at a caller-supplied time is kept this much longer, because that time may run behind the store's clock.
const GIVEN_TIME_GRACE: Duration = Duration::from_secs(60);

impl Log {
    /// Returns an empty log.
    #[must_use]
    pub fn new() -> Self {
        // `RandomState` takes its keys from the operating system's random number generator.
        let prefix = RandomState::new().hash_one("log");
        Self { entries: VecDeque::new(), prefix, next: 0, dropped: 0, expires_at: Timestamp::EPOCH }
    }

    /// Applies an operation that [`Op::checked`] has accepted.
    ///
    /// `now` is the store's clock, read inside the transaction. An operation with a caller-supplied time uses `now` only to
    /// compute the expiry.
    pub fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let (time, retention) = (self.clamped(op.at, now), op.retention());
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
            StoredEntry { at: time, total: self.total().wrapping_add(op.cost), number: self.next, id: op.id, admitted };
        self.next = self.next.wrapping_add(1);
        self.entries.push_back(appended);
        self.drop_front(self.first_from(retention.window.edge(time)));
        self.drop_beyond(retention.max);
        let unclamped = op.at.or_clock(now);
        let grace = if op.at == At::StoreClock { Duration::ZERO } else { GIVEN_TIME_GRACE };
        let time_to_live = Duration::from_micros(time.micros_since(unclamped)) + retention.window.as_duration() + grace;
        self.expires_at = now.saturating_add(time_to_live);
        let outcome = Outcome::Appended(self.entry(&appended));
        Facts { admitted, outcome, log: self.facts(op.policy, op.cost, time) }
    }

    /// Replaces the cost of one entry, or removes the entry. `now` is the store's clock.
    pub fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> SettlementFacts {
        let (time, receipt) = (self.clamped(settlement.at, now), settlement.receipt);
        let matches = |entry: &StoredEntry| self.entry(entry) == Entry { id: receipt.entry(), at: receipt.at() };
        let found = self.entries.iter().position(matches).filter(|_| !receipt.has_left(time));
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

    /// Returns the time by the store's clock from which the store may delete the log. `None` if the log is empty.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        (!self.is_empty()).then_some(self.expires_at)
    }

    /// Returns the number of entries, including expired ones that no append has dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the log has no entries. A store need not keep an empty log.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The time of an operation, clamped to the newest entry.
    fn clamped(&self, at: At, now: Timestamp) -> Timestamp {
        let unclamped = at.or_clock(now);
        self.entries.back().map_or(unclamped, |newest| newest.at.max(unclamped))
    }

    fn entry(&self, stored: &StoredEntry) -> Entry {
        Entry { id: EntryId::from_u128(u128::from(self.prefix) << 64 | u128::from(stored.number)), at: stored.at }
    }

    /// The total cost of all entries ever appended, modulo 2^64.
    fn total(&self) -> u64 {
        self.total_before(self.entries.len())
    }

    fn total_before(&self, i: usize) -> u64 {
        i.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(self.dropped, |entry| entry.total)
    }

    fn cost(&self, i: usize) -> u64 {
        self.total_before(i + 1).wrapping_sub(self.total_before(i))
    }

    /// The total cost of the entries from index `i` on. Retention keeps it far below 2^64, so it is exact.
    fn cost_from(&self, i: usize) -> u64 {
        self.total().wrapping_sub(self.total_before(i))
    }

    /// The index of the first entry at or after `at`.
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
        // Dropping the entry at which the running total exceeds `excess` would leave less than `max`.
        self.drop_front(self.first_reaching(0, excess + 1).unwrap_or(0));
    }

    /// The index of the first entry at which the running total from `start` reaches `cost`.
    fn first_reaching(&self, start: usize, cost: u64) -> Option<usize> {
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
            let time_of_first_reaching =
                |cost| self.first_reaching(start, cost).and_then(|i| self.entries.get(i)).map_or(now, |entry| entry.at);
            Usage {
                used,
                oldest: time_of_first_reaching(used.saturating_sub(limit.max()).saturating_add(1)),
                blocker: time_of_first_reaching(used.saturating_add(cost).saturating_sub(limit.max())),
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

/// Two logs are equal if they hold the same entries with the same ids and expire at the same time.
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
