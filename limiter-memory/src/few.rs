//! A log of at most three entries of cost 1, held in the map itself.

use limiter_core::{Op, Timestamp, Window};

use crate::entries::Entries;
use crate::keep::Keep;

/// An enum rather than an integer: its unused values are where [`Log`](crate::log::Log) keeps its tag.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Count {
    Zero,
    One,
    Two,
    Three,
}

const COUNTS: [Count; 4] = [Count::Zero, Count::One, Count::Two, Count::Three];

/// The number of the first entry in its 48 bits, the time of the first entry, and how much later the others are.
pub(crate) struct Few {
    count: Count,
    pub(crate) keep: Keep,
    number_high: u16,
    number_low: u32,
    first: Timestamp,
    later: [u32; 2],
}

impl Few {
    pub(crate) const CAPACITY: usize = 3;

    /// An empty log whose first entry will have this number, of 48 bits.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            count: Count::Zero,
            keep: Keep::default(),
            number_high: (number >> 32) as u16,
            number_low: number as u32,
            first: Timestamp::EPOCH,
            later: [0; 2],
        }
    }
}

impl Entries for Few {
    #[inline]
    fn len(&self) -> usize {
        self.count as usize
    }

    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        match i {
            0 => self.first,
            _ => Timestamp::from_micros_saturating(self.first.as_micros() + u64::from(self.later[(i - 1) & 1])),
        }
    }

    #[inline]
    fn first_number(&self) -> u64 {
        u64::from(self.number_high) << 32 | u64::from(self.number_low)
    }

    fn find(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first_number()).map(|i| i as usize).filter(|&i| i < self.len())
    }

    #[inline]
    fn start(&mut self, _: usize, window: Window, now: Timestamp) -> usize {
        let len = self.len();
        (0..len).find(|&i| window.counts(self.at(i), now)).unwrap_or(len)
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
        if dropped == 0 {
            return;
        }
        let len = self.len();
        let first = self.at(dropped.min(len - 1));
        let shift = first.micros_since(self.first) as u32;
        self.later = match dropped {
            1 => [self.later[1].wrapping_sub(shift), 0],
            _ => [0; 2],
        };
        self.first = first;
        self.count = COUNTS[len - dropped];
        let number = self.first_number() + dropped as u64;
        (self.number_high, self.number_low) = ((number >> 32) as u16, number as u32);
    }

    #[inline]
    fn takes(&self, op: &Op<'_>, at: Timestamp, expired: usize) -> bool {
        let len = self.len() - expired;
        let later = if len > 0 { at.micros_since(self.at(expired)) } else { 0 };
        op.cost == 1 && op.id.is_none() && len < Self::CAPACITY && later <= u64::from(u32::MAX)
    }

    #[inline]
    fn push(&mut self, _: &Op<'_>, at: Timestamp) -> u64 {
        let len = self.len();
        match len {
            0 => self.first = at,
            _ => self.later[(len - 1) & 1] = at.micros_since(self.first) as u32,
        }
        self.count = COUNTS[(len + 1) & 3];
        self.first_number() + len as u64
    }
}
