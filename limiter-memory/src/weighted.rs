//! A log of entries of any cost.

use std::collections::VecDeque;

use limiter_core::{Op, Timestamp, Window};

use crate::entries::{Entries, Hints, drop_from, gallop};

#[derive(Clone, Copy, Debug)]
struct Weight {
    at: u64,
    /// The sum of the costs of all entries up to this one. It may wrap: only differences count, and those are below
    /// 2^54, since the log drops what is beyond the largest cost.
    total: u64,
    number: u64,
}

/// Entries with their number and running total, so that the cost of any stretch is a difference.
#[derive(Debug)]
pub(crate) struct Weighted {
    entries: VecDeque<Weight>,
    /// The total before the first entry.
    before: u64,
    /// The number of the next entry.
    next: u64,
    hints: Hints,
}

impl Weighted {
    /// The same log, of entries of cost 1.
    pub(crate) fn from_units(units: &impl Entries) -> Self {
        let first = units.first_number();
        let weight = |i| Weight { at: units.at(i).as_micros(), total: i as u64 + 1, number: first + i as u64 };
        // Room for the entry for which the log takes this form.
        let mut entries = VecDeque::with_capacity(units.len() + 1);
        entries.extend((0..units.len()).map(weight));
        Self { entries, before: 0, next: first + units.len() as u64, hints: Hints::default() }
    }

    #[inline]
    fn total(&self) -> u64 {
        self.entries.back().map_or(self.before, |entry| entry.total)
    }

    /// Sets the cost of the `i`-th entry where it stands, or removes it if the cost is 0.
    pub(crate) fn settle(&mut self, i: usize, cost: u64) {
        let before = self.cost_from(i) - self.cost_from(i + 1);
        for entry in self.entries.range_mut(i..) {
            entry.total = entry.total.wrapping_sub(before).wrapping_add(cost);
        }
        if cost == 0 {
            self.entries.remove(i);
        }
    }
}

impl Entries for Weighted {
    #[inline]
    fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        Timestamp::from_micros_saturating(self.entries.get(i).map_or(0, |entry| entry.at))
    }

    fn first_number(&self) -> u64 {
        self.entries.front().map_or(self.next, |entry| entry.number)
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    #[inline]
    fn start(&mut self, limit: usize, window: Window, now: Timestamp) -> usize {
        let entries = &self.entries;
        let at = |i| Timestamp::from_micros_saturating(entries.get(i).map_or(0, |entry: &Weight| entry.at));
        self.hints.start(limit, entries.len(), |i| window.counts(at(i), now))
    }

    #[inline]
    fn cost_from(&self, start: usize) -> u64 {
        let before = start.checked_sub(1).and_then(|i| self.entries.get(i)).map_or(self.before, |entry| entry.total);
        self.total().wrapping_sub(before)
    }

    #[inline]
    fn reaching(&self, start: usize, cost: u64) -> usize {
        let all = self.cost_from(start);
        gallop(start, self.entries.len().saturating_sub(1), |i| all - self.cost_from(i + 1) < cost)
    }

    #[inline]
    fn drop_front(&mut self, dropped: usize) {
        let last = dropped.checked_sub(1).and_then(|i| self.entries.get(i));
        self.before = last.map_or(self.before, |last| last.total);
        self.hints.drop_front(dropped);
        drop_from(&mut self.entries, dropped);
    }

    #[inline]
    fn takes(&self, _: &Op<'_>, _: Timestamp, _: usize) -> bool {
        true
    }

    #[inline]
    fn push(&mut self, op: &Op<'_>, at: Timestamp) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.push_back(Weight { at: at.as_micros(), total: self.total().wrapping_add(op.cost), number });
        number
    }
}
