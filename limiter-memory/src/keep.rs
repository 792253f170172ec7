//! How long a log must be kept.

use limiter_core::store::{At, Op};
use limiter_core::{Timestamp, internal};

/// How long a log must be kept after its newest entry, in one byte: the leading zeros of the last append's retention window in
/// microseconds, which say what power of two the window is below. Forever, if that append was at a given time, which says
/// nothing about the store's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keep(u8);

/// The leading zeros of the operation's retention window in microseconds.
#[inline(always)]
pub(crate) fn retention_zeros(op: &Op<'_>) -> u8 {
    let own = internal::longest_window_zeros(op.policy);
    op.limiter_policy.map_or(own, |policy| own.min(internal::longest_window_zeros(policy)))
}

impl Keep {
    const GIVEN: u8 = 0x40;

    /// How many bits it takes: there are at most 63 leading zeros.
    pub(crate) const BITS: u32 = 7;

    #[inline]
    pub(crate) fn for_append(op: &Op<'_>) -> Self {
        Self(retention_zeros(op) | if op.at == At::StoreClock { 0 } else { Self::GIVEN })
    }

    /// Longer than the window, and at most twice as long; in microseconds.
    fn micros(self) -> u64 {
        u64::MAX >> (self.0 & !Self::GIVEN)
    }

    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.0)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits as u8 & (2 * Self::GIVEN - 1))
    }

    /// Whether the store may forget a log with this newest entry.
    pub(crate) fn is_over(self, newest: Timestamp, now: Timestamp) -> bool {
        self.0 & Self::GIVEN == 0 && now.micros_since(newest) > self.micros()
    }

    /// Whether a log with this newest entry has expired at a time of the caller's, who answers for the windows.
    pub(crate) fn is_over_at(self, newest: Timestamp, given: Timestamp) -> bool {
        given.micros_since(newest) > self.micros()
    }
}
