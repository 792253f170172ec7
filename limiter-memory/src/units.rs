//! A log of entries of cost 1: their times, and nothing else.

use std::collections::VecDeque;

use limiter_core::{Op, Timestamp, Window};

use crate::entries::{Entries, Hints, drop_from};

/// Times as offsets from a base, in 32 bits while they all fit (71 minutes), else in 64.
#[derive(Debug)]
pub(crate) struct Units<T> {
    /// The time of offset 0.
    base: u64,
    /// The number of the first entry; the others follow on.
    first: u64,
    offsets: VecDeque<T>,
    hints: Hints,
}

/// An unsigned integer that an offset of its size fits in.
pub(crate) trait Offset: Copy + Default {
    const MAX: u64;
    fn pack(offset: u64) -> Self;
    fn unpack(self) -> u64;
}

impl Offset for u32 {
    const MAX: u64 = u32::MAX as u64;

    #[inline]
    fn pack(offset: u64) -> Self {
        offset as u32
    }

    #[inline]
    fn unpack(self) -> u64 {
        u64::from(self)
    }
}

impl Offset for u64 {
    const MAX: u64 = u64::MAX;

    #[inline]
    fn pack(offset: u64) -> Self {
        offset
    }

    #[inline]
    fn unpack(self) -> u64 {
        self
    }
}

impl<T: Offset> Units<T> {
    /// The same log, with room for so many entries.
    pub(crate) fn from_entries(entries: &impl Entries, capacity: usize) -> Self {
        let mut units = Self::new(entries.first_number(), capacity);
        for i in 0..entries.len() {
            units.append(entries.at(i));
        }
        units
    }

    fn new(first: u64, capacity: usize) -> Self {
        Self { base: 0, first, offsets: VecDeque::with_capacity(capacity), hints: Hints::default() }
    }

    #[inline]
    fn append(&mut self, at: Timestamp) -> u64 {
        if self.offsets.is_empty() {
            self.base = at.as_micros();
        }
        self.offsets.push_back(T::pack(at.as_micros() - self.base));
        self.first + self.offsets.len() as u64 - 1
    }

    /// Moves the base to the first entry if that gains at least half the range, and tells whether it did: so the work
    /// is constant per entry on average.
    pub(crate) fn rebase(&mut self) -> bool {
        let shift = self.offsets.front().map_or(0, |front| front.unpack());
        if shift <= T::MAX / 2 {
            return false;
        }
        self.base += shift;
        self.offsets.iter_mut().for_each(|offset| *offset = T::pack(offset.unpack() - shift));
        true
    }
}

impl<T: Offset> Entries for Units<T> {
    #[inline]
    fn len(&self) -> usize {
        self.offsets.len()
    }

    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        let offset = self.offsets.get(i).copied().unwrap_or_default();
        Timestamp::from_micros_saturating(self.base + offset.unpack())
    }

    #[inline]
    fn first_number(&self) -> u64 {
        self.first
    }

    fn find(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).map(|i| i as usize).filter(|&i| i < self.offsets.len())
    }

    #[inline]
    fn start(&mut self, limit: usize, window: Window, now: Timestamp) -> usize {
        let (base, offsets) = (self.base, &self.offsets);
        let at = |i| Timestamp::from_micros_saturating(base + offsets.get(i).copied().unwrap_or_default().unpack());
        self.hints.start(limit, offsets.len(), |i| window.counts(at(i), now))
    }

    #[inline]
    fn cost_from(&self, start: usize) -> u64 {
        (self.offsets.len() - start) as u64
    }

    #[inline]
    fn reaching(&self, start: usize, cost: u64) -> usize {
        start.saturating_add(cost as usize).saturating_sub(1).min(self.offsets.len().saturating_sub(1))
    }

    #[inline]
    fn drop_front(&mut self, dropped: usize) {
        self.first += dropped as u64;
        self.hints.drop_front(dropped);
        drop_from(&mut self.offsets, dropped);
    }

    #[inline]
    fn takes(&self, op: &Op<'_>, at: Timestamp, expired: usize) -> bool {
        let range = if expired < self.offsets.len() { at.as_micros() - self.base } else { 0 };
        op.cost == 1 && range <= T::MAX
    }

    #[inline]
    fn push(&mut self, _: &Op<'_>, at: Timestamp) -> u64 {
        self.append(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_shrink_when_they_empty() {
        let mut log = Units::<u32>::new(0, 8);
        for micros in 0..100_000 {
            log.append(Timestamp::from_micros(micros).unwrap());
        }
        for _ in 0..99_990 {
            log.drop_front(1);
        }
        assert!(log.offsets.capacity() <= 64, "{}", log.offsets.capacity());
        assert_eq!((log.find(99_989), log.find(99_990), log.find(99_999)), (None, Some(0), Some(9)));
    }
}
