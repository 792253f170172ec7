//! A log of at most four entries of cost 1, held in the map itself.

use limiter_core::{Op, Timestamp, Window};

use crate::entries::{Entries, Expiry};
use crate::keep::Keep;

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

/// The newest entry's time, and of the older ones the low half of theirs: none is older by more than that can tell.
pub(crate) struct Few {
    count: Count,
    /// The first entry's number, of 24 bits, the lowest first.
    number: [u8; 3],
    older: [u32; 3],
    /// Its high byte is the [`Keep`].
    newest: u64,
}

const KEEP_SHIFT: u32 = 56;

impl Few {
    pub(crate) const CAPACITY: usize = 4;

    /// One more than the largest number of an entry.
    pub(crate) const NUMBERS: u32 = 1 << 24;

    /// An empty log whose first entry will have this number, of 24 bits.
    pub(crate) fn new(number: u32) -> Self {
        let mut few = Self { count: Count::Zero, number: [0; 3], older: [0; 3], newest: 0 };
        few.set_number(number);
        few
    }

    #[inline]
    fn set_number(&mut self, number: u32) {
        let [low, middle, high, _] = number.to_le_bytes();
        self.number = [low, middle, high];
    }

    pub(crate) fn keep(&self) -> Keep {
        Keep::from_bits(self.newest >> KEEP_SHIFT)
    }

    #[inline]
    fn newest_micros(&self) -> u64 {
        self.newest & ((1 << KEEP_SHIFT) - 1)
    }

    #[inline]
    fn micros(&self, low: u32) -> u64 {
        let newest = self.newest_micros();
        newest.wrapping_sub(u64::from((newest as u32).wrapping_sub(low)))
    }
}

impl Entries for Few {
    #[inline]
    fn len(&self) -> usize {
        self.count as usize
    }

    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        let older = if i + 1 < self.len() { self.older[i % 3] } else { self.newest as u32 };
        Timestamp::from_micros_saturating(self.micros(older))
    }

    #[inline]
    fn number(&self, i: usize) -> u32 {
        let [low, middle, high] = self.number;
        u32::from_le_bytes([low, middle, high, 0]) + i as u32
    }

    #[inline]
    fn start<const N: usize>(&mut self, _: usize, window: Window, now: Timestamp) -> usize {
        let (expiry, len) = (Expiry::new(window, now), self.len());
        let older = |i: usize| usize::from(i + 1 < len && expiry.has_left(self.micros(self.older[i])));
        older(0) + older(1) + older(2) + usize::from(len > 0 && expiry.has_left(self.newest_micros()))
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
        let [_, second, third] = self.older;
        self.older = match dropped {
            0 => self.older,
            1 => [second, third, 0],
            2 => [third, 0, 0],
            _ => [0; 3],
        };
        self.count = COUNTS[(self.len() - dropped) % COUNTS.len()];
        self.set_number(self.number(dropped));
    }

    #[inline]
    fn takes(&self, op: &Op<'_>, expired: usize) -> bool {
        op.cost == 1
            && op.id.is_none()
            && self.len() - expired < Self::CAPACITY
            && op.policy.longest_window().as_micros() <= u64::from(u32::MAX)
            && self.number(2 * Self::CAPACITY) < Self::NUMBERS
    }

    #[inline]
    fn push(&mut self, dropped: usize, op: &Op<'_>, at: Timestamp) -> u32 {
        self.drop_front(dropped);
        let len = self.len();
        if len > 0 {
            self.older[(len - 1) % 3] = self.newest as u32;
        }
        self.newest = at.as_micros() | Keep::for_append(op).to_bits() << KEEP_SHIFT;
        self.count = COUNTS[(len + 1) % COUNTS.len()];
        self.number(len)
    }
}
