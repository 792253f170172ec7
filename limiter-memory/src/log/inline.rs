//! The inline log: at most four entries of cost 1, in the slot itself.

use std::num::NonZero;

use limiter_core::store::Op;
use limiter_core::{Timestamp, Window, internal};

use super::encoding::{Narrow, can_encode};
use super::entries::Entries;
use super::retention::Retention;

/// The low halves of the times, with entry number `n` at index `n` modulo 4, and the high half of the newest time. No window
/// of an inline log is longer than a low half can express.
pub(crate) struct Inline {
    /// The first entry's number in 24 bits, the length in 7, and a 1: [`Log`](super::Log) keeps its tag in the unused value.
    state: NonZero<u32>,
    low: [u32; Inline::CAPACITY],
    /// The high half of the newest time, below the [`Retention`].
    high: u32,
}

const RETENTION_SHIFT: u32 = 24;
const _: () =
    assert!(Timestamp::MAX.as_micros() >> 32 < 1 << RETENTION_SHIFT && RETENTION_SHIFT + Retention::BITS <= u32::BITS);

impl Inline {
    pub(crate) const CAPACITY: usize = 4;

    /// Numbers of entries are below this.
    pub(crate) const NUMBERS: u32 = 1 << 24;

    /// Returns an empty log whose first entry will have this number of 24 bits.
    pub(crate) fn new(number: u32) -> Self {
        Self { state: Self::state(number, 0), low: [0; Self::CAPACITY], high: 0 }
    }

    #[inline(always)]
    fn state(number: u32, len: usize) -> NonZero<u32> {
        NonZero::<u32>::MIN | (len as u32) << 1 | number << 8
    }

    pub(crate) fn retention(&self) -> Retention {
        Retention::from_bits(u64::from(self.high >> RETENTION_SHIFT))
    }

    /// Returns the index of entry `i` in `low`.
    #[inline(always)]
    fn index(&self, i: usize) -> usize {
        ((self.state.get() >> 8) as usize).wrapping_add(i) % Self::CAPACITY
    }

    /// Returns the newest entry's time, or that of a dropped entry if the log is empty.
    #[inline(always)]
    fn newest_micros(&self) -> u64 {
        let low = self.low[self.index(self.len().wrapping_sub(1))];
        u64::from(self.high & ((1 << RETENTION_SHIFT) - 1)) << 32 | u64::from(low)
    }

    /// Returns how much older than the newest entry entry `i` is.
    #[inline(always)]
    fn age(&self, i: usize, newest: u64) -> u64 {
        u64::from((newest as u32).wrapping_sub(self.low[self.index(i)]))
    }
}

impl Entries for Inline {
    const COSTS: bool = false;

    #[inline(always)]
    fn len(&self) -> usize {
        usize::from(self.state.get() as u8 >> 1)
    }

    #[inline(always)]
    fn at(&self, i: usize) -> Timestamp {
        let newest = self.newest_micros();
        internal::timestamp_from_low_bits(newest.wrapping_sub(self.age(i, newest)))
    }

    #[inline(always)]
    fn newest(&self) -> Option<Timestamp> {
        (self.len() > 0).then(|| internal::timestamp_from_low_bits(self.newest_micros()))
    }

    #[inline(always)]
    fn number(&self, i: usize) -> u64 {
        u64::from(self.state.get() >> 8) + i as u64
    }

    #[inline(always)]
    fn window_start(&self, _: usize, window: Window, now: Timestamp) -> (usize, Timestamp) {
        let (newest, len) = (self.newest_micros(), self.len());
        let since = now.as_micros().wrapping_sub(newest);
        let start = if since >= window.as_micros() {
            len
        } else {
            // The newest entry counts, so at most three have expired. Adding up avoids a branch that cannot be predicted.
            let expired_age = window.as_micros() - since;
            let expired = |i: usize| usize::from(i < len) & usize::from(self.age(i, newest) >= expired_age);
            expired(0) + expired(1) + expired(2)
        };
        (start, self.at(start))
    }

    #[inline(always)]
    fn cost_from(&self, start: usize) -> u64 {
        (self.len() - start) as u64
    }

    #[inline(always)]
    fn drop_front(&mut self, count: usize) {
        self.state = Self::state(self.number(count) as u32, self.len() - count);
    }

    #[inline(always)]
    fn can_push(&self, op: &Op<'_>, expired: usize) -> bool {
        can_encode::<Narrow>(op, 0)
            && op.id.is_none()
            && self.len() - expired < Self::CAPACITY
            && self.number(2 * Self::CAPACITY) < u64::from(Self::NUMBERS)
    }

    #[inline(always)]
    fn push(&mut self, expired: usize, op: &Op<'_>, at: Timestamp) -> u64 {
        let len = self.len() - expired;
        let number = self.number(expired);
        self.state = Self::state(number as u32, len + 1);
        self.low[self.index(len)] = at.as_micros() as u32;
        self.high = (at.as_micros() >> 32) as u32 | (Retention::after_append(op).to_bits() as u32) << RETENTION_SHIFT;
        number + len as u64
    }
}
