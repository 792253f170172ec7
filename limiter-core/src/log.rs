//! One log as a value, for backends that load, change and save whole logs.

mod merge;
mod saved;
pub(crate) mod search;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;

use self::search::gallop;
use crate::policy::Policy;
use crate::policy::bounds::MAX_COST;
use crate::policy::limit::Limit;
use crate::policy::time::Timestamp;
use crate::store::facts::{Changed, Entry, Facts, LogFacts, Outcome, SettlementFacts, Usage};
use crate::store::joint::JointOp;
use crate::store::op::{At, EntryId, Op};
use crate::store::per_limit::PerLimit;
use crate::store::settlement::{Change, Settlement};

/// The entries of one log, with all operations of the [store contract](crate::WindowStore).
///
/// A backend over a key-value store runs these lines in a transaction or a compare-and-swap loop:
///
/// ```
/// # use limiter_core::Timestamp;
/// # use limiter_core::store::{Facts, Log, Op, Outcome};
/// # fn example(op: &Op<'_>, saved: Option<Vec<u8>>, save: impl FnOnce(Vec<u8>), now: Timestamp) -> Result<Facts, Box<dyn std::error::Error>> {
/// let mut log = saved.map_or(Ok(Log::new()), |bytes| Log::from_bytes(&bytes))?;
/// let facts = log.apply(op, now);
/// if let Outcome::Appended(_) = facts.outcome {
///     save(log.to_bytes()); // may be deleted from `log.expires_at()` on
/// }
/// # Ok(facts) }
/// ```
///
/// In a loop, keep the bytes longer than that by the time that a save may take to arrive. Otherwise a late one finds no bytes, as at its load,
/// though other processes have admitted entries meanwhile.
///
/// `limiter-log` contains such a loop, as a store over two functions that load and swap bytes.
///
/// # Performance
/// An operation takes logarithmic time in the number of entries. A settlement takes time proportional to the number of entries
/// that are newer than the one it changes; a renewal in a log with idempotency keys, linear time. Loading and saving take linear time.
///
/// With a resolution, merging adds amortised logarithmic time to an append.
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
    /// Idempotency keys. Some may name entries that are gone.
    ids: HashMap<EntryId, Original>,
}

#[derive(Clone, Copy)]
struct StoredEntry {
    at: Timestamp,
    /// The running total up to and including this entry, modulo 2^64.
    total: u64,
    /// The lower half of the entry's id, which increases from entry to entry, and the flag [`MERGED`].
    flagged: u64,
}

/// The flag of a merged entry, which no receipt and no idempotency key names.
const MERGED: u64 = 1 << 63;

impl StoredEntry {
    const fn number(&self) -> u64 {
        self.flagged & !MERGED
    }

    const fn is_merged(&self) -> bool {
        self.flagged & MERGED > 0
    }
}

/// The entry that an idempotency key names, with its [`Facts::admitted`] and [`Facts::refundable`].
#[derive(Clone, Copy)]
struct Original {
    number: u64,
    admitted: bool,
    refundable: bool,
    /// Whether a renewal has moved it.
    is_renewed: bool,
}

/// A log appended to at a caller-supplied time is kept this many microseconds longer, because that time may run behind the store's
/// clock.
const GIVEN_TIME_GRACE: u64 = 60_000_000;

impl Log {
    /// Returns an empty log.
    #[must_use]
    pub fn new() -> Self {
        // `RandomState` takes its keys from the operating system's random number generator.
        Self::with_ids(RandomState::new().hash_one("log"), 0)
    }

    /// Returns an empty log whose entries will have ids from these halves on.
    fn with_ids(prefix: u64, next: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            prefix,
            next,
            dropped: 0,
            expires_at: Timestamp::EPOCH,
            ids: HashMap::new(),
        }
    }

    /// Returns a log of entries with these times and costs, oldest first. Their ids are successive numbers, beginning with `first`.
    #[doc(hidden)]
    #[must_use]
    pub fn numbered(first: u64, entries: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        let mut log = Self::with_ids(0, first);
        for (at, cost) in entries {
            log.append(at, cost);
        }
        log
    }

    /// Returns the number of the first entry, and the times and costs of the entries, if [`numbered`](Self::numbered) returns an equal
    /// log for them. `None` for a log with idempotency keys, merged entries, gaps in its numbers or its own ids.
    #[doc(hidden)]
    pub fn numbered_entries(&self) -> Option<(u64, impl Iterator<Item = (Timestamp, u64)>)> {
        let first = self.next.checked_sub(self.len() as u64)?;
        let is_numbered = self.prefix == 0 && self.ids.is_empty();
        let flagged = self.entries.iter().map(|entry| entry.flagged);
        let entries = self.entries.iter().enumerate();
        (is_numbered && flagged.eq(first..self.next))
            .then(|| (first, entries.map(|(i, entry)| (entry.at, self.cost_of(i)))))
    }

    /// Returns the entries with their costs, oldest first.
    #[doc(hidden)]
    pub fn entries(&self) -> impl Iterator<Item = (Entry, u64)> {
        let entries = self.entries.iter().enumerate();
        entries.map(|(i, entry)| (self.entry(entry), self.cost_of(i)))
    }

    /// Sets the time from which the store may delete the log.
    #[doc(hidden)]
    pub fn set_expiry(&mut self, expires_at: Timestamp) {
        self.expires_at = expires_at;
    }

    /// Applies an operation that [`Op::checked`] has accepted.
    ///
    /// `now` is the store's clock, read inside the transaction. An operation with a caller-supplied time uses `now` only to
    /// compute the expiry.
    pub fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let time = self.clamped(op.at, now);
        let clock = op.at.waits_from(time, now);
        if let Some(facts) = self.repeated(op, now) {
            return facts;
        }
        let fits = |limit: &Limit| self.used(limit, time).saturating_add(op.cost) <= limit.max();
        let admitted = op.policy.limits().iter().all(fits);
        let refundable = admitted
            && op
                .limiter_policy
                .is_none_or(|policy| policy.limits().iter().all(fits));
        let mut outcome = Outcome::Nothing;
        if op.appends(admitted) {
            let original = Original {
                number: self.next,
                admitted,
                refundable,
                is_renewed: false,
            };
            self.ids.extend(op.id.map(|id| (id, original)));
            outcome = Outcome::Appended(self.append_for(op, time, now));
        }
        Facts {
            admitted,
            refundable,
            outcome,
            log: self.facts(op.policy, op.cost, time, clock),
        }
    }

    /// Appends an operation's entry at `time`, drops and merges. `now` is the store's clock.
    fn append_for(&mut self, op: &Op<'_>, time: Timestamp, now: Timestamp) -> Entry {
        let before = self.newest();
        let retention = op.retention();
        let appended = self.append(time, op.cost);
        self.drop_front(self.first_from(retention.window.edge(time)));
        self.drop_beyond(retention.max);
        self.merge(op, before.unwrap_or(time), time);
        self.forget_ids();
        self.expire_after(op, time, now);
        self.entry(&appended)
    }

    /// Returns an operation's facts if it repeats another.
    #[doc(hidden)]
    pub fn repeated(&self, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
        let (i, original) = self.original(op.id?)?;
        let entry = self.entries[i];
        let time = self.clamped(op.at, now);
        if !op.receipt_window()?.counts(entry.at, time) {
            return None;
        }
        let clock = op.at.waits_from(time, now);
        Some(Facts {
            admitted: original.admitted,
            refundable: original.refundable,
            outcome: Outcome::Repeated {
                entry: self.entry(&entry),
                cost: self.cost_of(i),
            },
            log: self.facts(op.policy, op.cost, time, clock),
        })
    }

    /// Applies operations on different logs as one, as [`WindowStore::apply_all`](crate::WindowStore::apply_all) does.
    pub fn apply_all<'a>(
        logs: impl IntoIterator<Item = &'a mut Self>,
        ops: &[JointOp<'_>],
        now: Timestamp,
    ) -> Vec<Facts> {
        let mut logs: Vec<&mut Self> = logs.into_iter().collect();
        let looks = logs.iter_mut().zip(ops).map(|(log, joint)| {
            let repeated = log.repeated(&joint.op, now);
            repeated.unwrap_or_else(|| log.apply(&joint.op.to_peek(), now))
        });
        let looks: Vec<Facts> = looks.collect();
        let held = JointOp::held(ops, &looks);
        let applied = logs.into_iter().zip(ops).zip(held);
        let applied = applied.map(|((log, JointOp { op, .. }), is_held)| {
            log.apply(&if is_held { op.to_peek() } else { *op }, now)
        });
        applied.collect()
    }

    /// Sets the expiry after an append at `time`.
    fn expire_after(&mut self, op: &Op<'_>, time: Timestamp, now: Timestamp) {
        let ahead = time.micros_since(op.at.or_clock(now));
        let grace = match op.at {
            At::StoreClock => 0,
            At::Given(_) => GIVEN_TIME_GRACE,
        };
        // Each is below 2^53.
        let expires_at = now.as_micros() + ahead + op.retention().window.as_micros() + grace;
        self.expires_at = Timestamp::from_micros_saturating(expires_at);
    }

    /// Replaces the cost of one entry, removes the entry, or renews it. `now` is the store's clock.
    pub fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> SettlementFacts {
        let time = self.clamped(settlement.at, now);
        let changed = self.find(settlement, time).map(|i| {
            let entry = self.entry(&self.entries[i]);
            let cost_before = self.cost_of(i);
            let entry = match settlement.change {
                Change::Cost(cost) => {
                    self.set_cost(i, cost);
                    entry
                }
                Change::Renew { .. } => {
                    let old = self.entries[i].number();
                    let new = self.next;
                    self.set_cost(i, 0);
                    let mut originals = self.ids.values_mut();
                    if let Some(original) = originals.find(|original| original.number == old) {
                        (original.number, original.is_renewed) = (new, true);
                    }
                    self.append_for(&settlement.to_record(cost_before), time, now)
                }
            };
            Changed { cost_before, entry }
        });
        let clock = settlement.at.waits_from(time, now);
        SettlementFacts {
            changed,
            log: self.facts(settlement.policy, 0, time, clock),
        }
    }

    /// The index of the entry that a settlement at `time` changes.
    fn find(&self, settlement: &Settlement<'_>, time: Timestamp) -> Option<usize> {
        let receipt = settlement.receipt;
        if receipt.has_expired(time) {
            return None;
        }
        let named = Entry {
            id: receipt.entry(),
            at: receipt.at(),
        };
        let found = position(&self.entries, receipt.entry().as_u128() as u64)
            .filter(|&i| self.entry(&self.entries[i]) == named);
        let moved = || {
            let Change::Renew { id } = settlement.change else {
                return None;
            };
            let (i, original) = self.original(id?)?;
            (original.is_renewed && receipt.at() <= self.entries[i].at).then_some(i)
        };
        found.or_else(moved)
    }

    /// Sets the cost of an entry, but raises it only until the log holds [`MAX_COST`]. A cost of 0 removes the entry.
    fn set_cost(&mut self, i: usize, cost: u64) {
        let before = self.cost_of(i);
        let most = MAX_COST.saturating_sub(self.cost() - before);
        let change = cost.min(most.max(before)).wrapping_sub(before);
        for entry in self.entries.range_mut(i..) {
            entry.total = entry.total.wrapping_add(change);
        }
        if cost == 0 {
            self.entries.remove(i);
        }
    }

    /// Returns the time by the store's clock from which the store may delete the log. `None` if the log is empty.
    pub fn expires_at(&self) -> Option<Timestamp> {
        (!self.is_empty()).then_some(self.expires_at)
    }

    /// Returns the number of entries, including expired entries that no append has dropped yet.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if the log has no entries. A store need not keep an empty log.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the total cost of the entries, including expired entries that no append has dropped yet.
    pub fn cost(&self) -> u64 {
        self.cost_from(0)
    }

    /// Returns the time of the oldest entry. `None` if the log is empty.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.entries.front().map(|oldest| oldest.at)
    }

    /// Returns the time of the newest entry. `None` if the log is empty.
    pub fn newest(&self) -> Option<Timestamp> {
        self.entries.back().map(|newest| newest.at)
    }

    /// An operation's time, clamped to the newest entry.
    fn clamped(&self, at: At, now: Timestamp) -> Timestamp {
        let unclamped = at.or_clock(now);
        self.newest()
            .map_or(unclamped, |newest| newest.max(unclamped))
    }

    fn entry(&self, stored: &StoredEntry) -> Entry {
        Entry {
            id: EntryId::from_u128(u128::from(self.prefix) << 64 | u128::from(stored.number())),
            at: stored.at,
        }
    }

    fn append(&mut self, at: Timestamp, cost: u64) -> StoredEntry {
        let appended = StoredEntry {
            at,
            total: self.total().wrapping_add(cost),
            flagged: self.next,
        };
        self.next = self.next.wrapping_add(1);
        self.entries.push_back(appended);
        appended
    }

    /// The index of the entry with this idempotency key.
    fn original(&self, id: EntryId) -> Option<(usize, Original)> {
        let original = *self.ids.get(&id)?;
        Some((position(&self.entries, original.number)?, original))
    }

    /// Forgets the ids of removed or merged entries. Does so only if more than half of the ids are stale.
    fn forget_ids(&mut self) {
        if self.ids.len() > 2 * self.entries.len() {
            let is_held = |original: &Original| position(&self.entries, original.number).is_some();
            self.ids.retain(|_, original| is_held(original));
            self.ids.shrink_to(2 * self.entries.len());
        }
    }

    /// The total cost of all entries ever appended, modulo 2^64.
    fn total(&self) -> u64 {
        self.total_before(self.entries.len())
    }

    fn total_before(&self, i: usize) -> u64 {
        i.checked_sub(1)
            .and_then(|last| self.entries.get(last))
            .map_or(self.dropped, |entry| entry.total)
    }

    fn cost_of(&self, i: usize) -> u64 {
        self.total_before(i + 1).wrapping_sub(self.total_before(i))
    }

    /// The total cost of the entries from index `i` on. Retention keeps it far below 2^64, so it is exact.
    fn cost_from(&self, i: usize) -> u64 {
        self.total().wrapping_sub(self.total_before(i))
    }

    /// The index of the first entry at or after `at`.
    fn first_from(&self, at: Timestamp) -> usize {
        gallop(0, self.len(), |i| self.entries[i].at < at)
    }

    fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        self.cost_from(self.first_from(limit.window().edge(now)))
    }

    fn drop_front(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.dropped = self.total_before(count);
        self.entries.drain(..count);
        self.shrink();
    }

    fn shrink(&mut self) {
        let capacity = self.entries.capacity();
        if capacity > 32 && self.entries.len() < capacity / 4 {
            self.entries.shrink_to(2 * self.entries.len().max(16));
        }
    }

    /// Keeps the newest entries, up to the entry at which their total cost reaches `max`. Drops all older entries.
    fn drop_beyond(&mut self, max: u64) {
        let excess = self.cost().saturating_sub(max);
        if excess > 0 {
            // Dropping the entry at which the running total exceeds `excess` would leave less than `max`.
            self.drop_front(self.first_reaching(0, excess + 1).unwrap_or(0));
        }
    }

    /// The index of the first entry at which the running total from `start` reaches `cost`.
    fn first_reaching(&self, start: usize, cost: u64) -> Option<usize> {
        if cost <= 1 && start < self.len() {
            return Some(start);
        }
        let before = self.total_before(start);
        let found = gallop(start, self.len(), |i| {
            self.entries[i].total.wrapping_sub(before) < cost
        });
        (found < self.len()).then_some(found)
    }

    fn facts(&self, policy: &Policy, cost: u64, now: Timestamp, clock: Timestamp) -> LogFacts {
        let usage_of = |limit: &Limit| {
            let start = self.first_from(limit.window().edge(now));
            let used = self.cost_from(start);
            let reaching = |cost| {
                let first = self.entries.get(self.first_reaching(start, cost)?)?;
                Some(first.at)
            };
            let above = |cost| used.saturating_add(cost).saturating_sub(limit.max());
            Usage {
                used,
                oldest: reaching(above(0) + 1).unwrap_or(now),
                blocker: reaching(above(cost)).unwrap_or(now),
            }
        };
        LogFacts {
            now,
            clock,
            newest: self.newest(),
            usage: PerLimit::of(policy, usage_of),
        }
    }
}

/// The index of the entry with this number, unless it is merged.
fn position(entries: &VecDeque<StoredEntry>, number: u64) -> Option<usize> {
    let is_it = |entry: &StoredEntry| entry.number() == number && !entry.is_merged();
    // Exact unless an entry before it is gone.
    let latest = usize::try_from(number.checked_sub(entries.front()?.number())?).ok()?;
    if entries.get(latest).is_some_and(is_it) {
        return Some(latest);
    }
    let i = entries
        .binary_search_by_key(&number, StoredEntry::number)
        .ok()?;
    is_it(&entries[i]).then_some(i)
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().enumerate();
        let entries = entries.map(|(i, entry)| (entry.at.as_micros(), self.cost_of(i)));
        f.debug_struct("Log")
            .field("entries", &entries.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::log_key::LogKey;
    use crate::{Receipt, policy};

    #[test]
    fn entries_that_merge_free_their_memory() {
        let policy = policy!("9000/10s, 9000/2h~1m");
        let mut log = Log::new();
        for millis in (0..5_000).chain([60_000]) {
            let now = Timestamp::from_micros_saturating(millis * 1_000);
            let _ = log.apply(&Op::record("", &policy), now);
        }
        let entries = "Log { entries: [(4999000, 5000), (60000000, 1)], .. }";
        assert_eq!(format!("{log:?}"), entries);
        assert_eq!(log.entries.capacity(), 32);
    }

    #[test]
    fn the_ids_of_refunded_entries_are_forgotten() {
        let policy = policy!("9/1m");
        let now = Timestamp::from_micros_saturating(1 << 50);
        let mut log = Log::new();
        let mut append = |id: u128| {
            let mut op = Op::acquire("", &policy);
            op.id = Some(EntryId::from_u128(id));
            let Outcome::Appended(entry) = log.apply(&op, now).outcome else {
                panic!("not appended: {id}")
            };
            if id > 0 {
                let receipt = Receipt::new(entry.id, entry.at, policy.longest_window());
                let refund = Settlement::new(LogKey::new("".into(), ""), &policy, receipt, 0);
                assert!(log.settle(&refund, now).applied());
            }
            assert!(log.ids.len() <= 5, "{:?}", log.ids.len());
        };
        // Appending the same once more needs the id to be forgotten.
        (0..1000).chain(1..1000).for_each(&mut append);
    }
}
