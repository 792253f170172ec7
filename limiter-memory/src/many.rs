//! A log in which an entry can be named by an id or removed: whatever no ring takes.

use limiter_core::store::{Entry, Facts, Op, Outcome};
use limiter_core::{EntryId, MAX_COST, MAX_LIMITS, Timestamp, Window};
use std::collections::VecDeque;

use crate::apply::Survey;
use crate::entries::{Entries, boundary, gallop};
use crate::ids::{Ids, Named};
use crate::keep::Keep;

/// Entries in the order in which they were appended, each with its number: there may be gaps.
pub(crate) struct Many {
    entries: VecDeque<Numbered>,
    /// The cost of all dropped entries, modulo 2^64.
    before: u64,
    next: u64,
    pub(crate) keep: Keep,
    /// How many entries have been dropped from the front, modulo 2^32.
    dropped: u32,
    /// Where each limit's window began the last time, plus what had been dropped.
    hints: [u32; MAX_LIMITS],
    ids: Ids,
}

#[derive(Clone, Copy)]
struct Numbered {
    at: u64,
    /// The cost of this entry and all before it, modulo 2^64.
    total: u64,
    number: u64,
}

impl Many {
    pub(crate) fn holding(log: &impl Entries, keep: Keep) -> Self {
        let (len, all, first) = (log.len(), log.cost_from(0), log.number(0));
        let numbered =
            |i| Numbered { at: log.at(i).as_micros(), total: all - log.cost_from(i + 1), number: first + i as u64 };
        // Room for the entry for which the log takes this form.
        let mut entries = VecDeque::with_capacity(len + 1);
        entries.extend((0..len).map(numbered));
        let (hints, ids) = ([0; MAX_LIMITS], Ids::default());
        Self { entries, before: 0, next: first + len as u64, keep, dropped: 0, hints, ids }
    }

    #[inline]
    fn total(&self) -> u64 {
        self.entries.back().map_or(self.before, |entry| entry.total)
    }

    pub(crate) fn apply<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let clamped = self.not_before(now);
        if let Some(original) = op.id.and_then(|id| self.named(id, op, clamped)) {
            return Survey::<N>::new(self, op, now).repeat(self, op, original);
        }
        let facts = Survey::<N>::new(self, op, now).apply(self, op);
        if let Outcome::Appended(entry) = facts.outcome {
            self.ids.drop_before(self.number(0));
            if let Some(id) = op.id {
                self.ids.insert(id, Named { number: entry.id.as_u128() as u64, admitted: facts.admitted });
            }
        }
        facts
    }

    /// The verdict on, and the name of, the entry with this id, if it still counts.
    fn named(&self, id: EntryId, op: &Op<'_>, now: Timestamp) -> Option<(bool, Entry)> {
        let Named { number, admitted } = self.ids.get(id)?;
        let at = self.at(self.find(number)?);
        let entry = Entry { id: EntryId::from_u128(u128::from(number)), at };
        op.retention().window.counts(at, now).then_some((admitted, entry))
    }

    /// Sets the cost of the `i`-th entry, or removes it if the cost is 0.
    pub(crate) fn settle(&mut self, i: usize, cost: u64) {
        let before = self.cost_from(i) - self.cost_from(i + 1);
        for entry in self.entries.range_mut(i..) {
            entry.total = entry.total.wrapping_sub(before).wrapping_add(cost);
        }
        if cost == 0 {
            self.ids.remove(self.number(i));
            self.entries.remove(i);
        }
        self.drop_beyond(MAX_COST);
        self.ids.drop_before(self.number(0));
    }
}

impl Entries for Many {
    #[inline]
    fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        Timestamp::from_micros_saturating(self.entries.get(i).map_or(0, |entry| entry.at))
    }

    fn number(&self, i: usize) -> u64 {
        self.entries.get(i).map_or(self.next, |entry| entry.number)
    }

    fn find(&self, number: u64) -> Option<usize> {
        let find = |number| self.entries.binary_search_by_key(&number, |entry| entry.number).ok();
        // A receipt from before the log took this form has the number modulo 2^32.
        find(number).or_else(|| find(number | 1 << 32))
    }

    #[inline]
    fn first<const N: usize>(&self, limit: usize, window: Window, now: Timestamp) -> (usize, Timestamp) {
        let hint = self.hints[limit % MAX_LIMITS].wrapping_sub(self.dropped) as usize;
        let start = boundary(hint, self.len(), |i| !window.counts(self.at(i), now));
        (start, self.at(start))
    }

    fn remember(&mut self, starts: impl Iterator<Item = usize>) {
        for (hint, start) in self.hints.iter_mut().zip(starts) {
            *hint = self.dropped.wrapping_add(start as u32);
        }
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

    fn drop_front(&mut self, dropped: usize) {
        let last = dropped.checked_sub(1).and_then(|i| self.entries.get(i));
        self.before = last.map_or(self.before, |last| last.total);
        self.dropped = self.dropped.wrapping_add(dropped as u32);
        self.entries.drain(..dropped.min(self.entries.len()));
        if self.entries.capacity() > 32 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.capacity() / 2);
        }
    }

    #[inline]
    fn takes<const N: usize>(&self, _: &Op<'_>, _: usize) -> bool {
        true
    }

    fn push(&mut self, dropped: usize, op: &Op<'_>, at: Timestamp) -> u64 {
        self.drop_front(dropped);
        let number = self.next;
        self.next = number + 1;
        self.keep = Keep::for_append(op);
        let total = self.total().wrapping_add(op.cost);
        self.entries.push_back(Numbered { at: at.as_micros(), total, number });
        number
    }
}
