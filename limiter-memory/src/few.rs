//! A log of at most four entries of cost 1, held in the map itself.

use crate::entries::Entries;
use crate::keep::Keep;
use crate::layout::{Narrow, fits};
use limiter_core::store::Op;
use limiter_core::{Timestamp, Window, internal};

/// An enum rather than an integer: its unused values are where [`Log`](crate::log::Log) keeps a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Count {
    Zero,
    One,
    Two,
    Three,
    Four,
}

const COUNTS: [Count; 8] =
    [Count::Zero, Count::One, Count::Two, Count::Three, Count::Four, Count::Zero, Count::Zero, Count::Zero];

/// The low halves of the times, the entry with number `n` at the place `n` modulo 4, and the high half of the newest
/// one's: no entry is older than that by more than a low half can tell.
pub(crate) struct Few {
    count: Count,
    /// The first entry's number, of 24 bits, the lowest first.
    number: [u8; 3],
    low: [u32; Few::CAPACITY],
    /// Below the [`Keep`].
    high: u32,
}

const KEEP_SHIFT: u32 = 24;
const _: () = assert!(Timestamp::MAX.as_micros() >> 32 < 1 << KEEP_SHIFT && KEEP_SHIFT + Keep::BITS <= u32::BITS);

impl Few {
    pub(crate) const CAPACITY: usize = 4;

    /// One more than the largest number of an entry.
    pub(crate) const NUMBERS: u32 = 1 << 24;

    /// An empty log whose first entry will have this number, of 24 bits.
    pub(crate) fn new(number: u32) -> Self {
        let mut few = Self { count: Count::Zero, number: [0; 3], low: [0; Self::CAPACITY], high: 0 };
        few.set_number(number);
        few
    }

    #[inline]
    fn set_number(&mut self, number: u32) {
        let [low, middle, high, _] = number.to_le_bytes();
        self.number = [low, middle, high];
    }

    pub(crate) fn keep(&self) -> Keep {
        Keep::from_bits(u64::from(self.high >> KEEP_SHIFT))
    }

    /// Where the `i`-th entry is.
    #[inline(always)]
    fn place(&self, i: usize) -> usize {
        usize::from(self.number[0]).wrapping_add(i) % Self::CAPACITY
    }

    /// The newest entry's time; that of a dropped one if there is none.
    #[inline(always)]
    fn newest_micros(&self) -> u64 {
        let low = self.low[self.place(self.len().wrapping_sub(1))];
        u64::from(self.high & ((1 << KEEP_SHIFT) - 1)) << 32 | u64::from(low)
    }

    /// How much older than the newest entry the `i`-th is.
    #[inline(always)]
    fn age(&self, i: usize, newest: u64) -> u64 {
        u64::from((newest as u32).wrapping_sub(self.low[self.place(i)]))
    }
}

impl Entries for Few {
    #[inline]
    fn len(&self) -> usize {
        self.count as usize
    }

    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        let newest = self.newest_micros();
        internal::timestamp_from_low_bits(newest.wrapping_sub(self.age(i, newest)))
    }

    #[inline]
    fn newest(&self) -> Option<Timestamp> {
        (self.len() > 0).then(|| internal::timestamp_from_low_bits(self.newest_micros()))
    }

    #[inline]
    fn number(&self, i: usize) -> u64 {
        let [low, middle, high] = self.number;
        u64::from(u32::from_le_bytes([low, middle, high, 0])) + i as u64
    }

    #[inline]
    fn first<const N: usize>(&self, _: usize, window: Window, now: Timestamp) -> (usize, Timestamp) {
        let (newest, len) = (self.newest_micros(), self.len());
        let since = now.as_micros().wrapping_sub(newest);
        let start = if since >= window.as_micros() {
            len
        } else {
            let oldest = window.as_micros() - since;
            let has_left = |i: usize| usize::from(i < len) & usize::from(self.age(i, newest) >= oldest);
            has_left(0) + has_left(1) + has_left(2)
        };
        (start, self.at(start))
    }

    #[inline]
    fn cost_from(&self, start: usize) -> u64 {
        (self.len() - start) as u64
    }

    #[inline]
    fn reaching(&self, start: usize, cost: u64) -> usize {
        (start + cost as usize).saturating_sub(1).min(self.len().saturating_sub(1))
    }

    #[inline]
    fn drop_front(&mut self, dropped: usize) {
        self.count = COUNTS[(self.len() - dropped) % COUNTS.len()];
        self.set_number(self.number(dropped) as u32);
    }

    #[inline]
    fn takes<const N: usize>(&self, op: &Op<'_>, from: usize) -> bool {
        fits::<Narrow>(op, 0)
            && op.id.is_none()
            && self.len() - from < Self::CAPACITY
            && self.number(2 * Self::CAPACITY) < u64::from(Self::NUMBERS)
    }

    #[inline]
    fn push(&mut self, dropped: usize, op: &Op<'_>, at: Timestamp) -> u64 {
        let len = self.len() - dropped;
        let number = self.number(dropped);
        self.set_number(number as u32);
        self.count = COUNTS[(len + 1) % COUNTS.len()];
        self.low[self.place(len)] = at.as_micros() as u32;
        self.high = (at.as_micros() >> 32) as u32 | (Keep::for_append(op).to_bits() as u32) << KEEP_SHIFT;
        number + len as u64
    }
}
