//! The sparse log: whatever no ring can hold. Entries can carry ids, and settlements and refunds leave gaps in the numbers.

use std::collections::{HashMap, VecDeque};

use limiter_core::store::Op;
use limiter_core::{EntryId, MAX_COST, Timestamp, Window};

use super::entries::Entries;
use super::retention::Retention;
use super::search::gallop;

/// A deque of entries of 24 bytes.
pub(crate) struct Sparse {
    entries: VecDeque<SparseEntry>,
    /// The total cost of all dropped entries, modulo 2^64.
    dropped: u64,
    next_number: u64,
    retention: Retention,
    /// Idempotency keys. Some may name entries that the log no longer holds.
    ids: HashMap<EntryId, IdEntry, foldhash::fast::RandomState>,
}

/// The original verdict on an entry with an idempotency key.
#[derive(Clone, Copy)]
pub(crate) struct IdEntry {
    pub(crate) number: u64,
    pub(crate) admitted: bool,
}

#[derive(Clone, Copy)]
struct SparseEntry {
    at: u64,
    /// The total cost up to and including this entry, modulo 2^64.
    total: u64,
    number: u64,
}

impl Sparse {
    pub(crate) fn copy_of(log: &impl Entries, retention: Retention) -> Self {
        let (len, all, first) = (log.len(), log.cost_from(0), log.number(0));
        let entry =
            |i| SparseEntry { at: log.at(i).as_micros(), total: all - log.cost_from(i + 1), number: first + i as u64 };
        let mut entries = VecDeque::with_capacity(len + 1);
        entries.extend((0..len).map(entry));
        Self { entries, dropped: 0, next_number: first + len as u64, retention, ids: HashMap::default() }
    }

    pub(crate) fn retention(&self) -> Retention {
        self.retention
    }

    /// Returns the total cost of all entries before entry `i`, dropped ones included, modulo 2^64.
    fn total_before(&self, i: usize) -> u64 {
        i.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(self.dropped, |entry| entry.total)
    }

    /// Returns the entry with this idempotency key, and its time.
    pub(crate) fn by_id(&self, id: EntryId) -> Option<(IdEntry, Timestamp)> {
        let entry = *self.ids.get(&id)?;
        Some((entry, self.at(self.position(entry.number)?)))
    }

    /// Stores the idempotency key of an entry.
    pub(crate) fn insert_id(&mut self, id: EntryId, entry: IdEntry) {
        // Amortised O(1): keys of entries that are gone make up half of the map when it is cleaned up.
        if self.ids.len() > 2 * self.entries.len() {
            let first = self.number(0);
            self.ids.retain(|_, entry| entry.number >= first);
        }
        self.ids.insert(id, entry);
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// Sets the cost of entry `i`, or removes the entry if the cost is 0.
    pub(crate) fn settle(&mut self, i: usize, cost: u64) {
        let before = self.cost_from(i) - self.cost_from(i + 1);
        for entry in self.entries.range_mut(i..) {
            entry.total = entry.total.wrapping_sub(before).wrapping_add(cost);
        }
        if cost == 0 {
            self.entries.remove(i);
        }
        self.drop_beyond(MAX_COST);
    }
}

impl Entries for Sparse {
    const COSTS: bool = true;

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn at(&self, i: usize) -> Timestamp {
        Timestamp::from_micros_saturating(self.entries.get(i).map_or(0, |entry| entry.at))
    }

    fn number(&self, i: usize) -> u64 {
        self.entries.get(i).map_or(self.next_number, |entry| entry.number)
    }

    fn find(&self, number: u64) -> Option<usize> {
        // A receipt of the log when it was a ring has the number modulo 2^32.
        self.position(number).or_else(|| self.position(number | 1 << 32))
    }

    fn window_start(&self, _: usize, window: Window, now: Timestamp) -> (usize, Timestamp) {
        let start = gallop(0, self.len(), |i| !window.counts(self.at(i), now));
        (start, self.at(start))
    }

    fn cost_from(&self, start: usize) -> u64 {
        self.total_before(self.len()).wrapping_sub(self.total_before(start))
    }

    fn drop_front(&mut self, count: usize) {
        self.dropped = self.total_before(count);
        self.entries.drain(..count.min(self.entries.len()));
        if self.entries.capacity() > 32 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.capacity() / 2);
        }
    }

    fn can_push(&self, _: &Op<'_>, _: usize) -> bool {
        true
    }

    fn push(&mut self, expired: usize, op: &Op<'_>, at: Timestamp) -> u64 {
        self.drop_front(expired);
        let number = self.next_number;
        self.next_number = number + 1;
        self.retention = Retention::after_append(op);
        let total = self.total_before(self.len()).wrapping_add(op.cost);
        self.entries.push_back(SparseEntry { at: at.as_micros(), total, number });
        number
    }
}
