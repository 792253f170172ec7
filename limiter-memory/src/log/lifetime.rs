//! How long the store must keep a log.

use limiter_core::store::{At, Op};
use limiter_core::{Timestamp, Window};

/// How long a log must be kept after its newest entry, in seven bits: the leading zeros of the retention window of the last
/// append, in microseconds. Forever if that append was at a given time, which does not reveal the store's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lifetime(u8);

/// Returns the leading zeros of the operation's retention window in microseconds.
#[inline(always)]
pub(crate) fn retention_zeros(op: &Op<'_>) -> u8 {
    // A window is at least 1; the compiler does not know it, and would check for 0.
    (op.retention().window.as_micros() | 1).leading_zeros() as u8
}

impl Lifetime {
    const GIVEN: u8 = 0x40;
    pub(crate) const BITS: u32 = 7;

    #[inline]
    pub(crate) fn after_append(op: &Op<'_>) -> Self {
        let given = match op.at {
            At::StoreClock => 0,
            At::Given(_) => Self::GIVEN,
        };
        Self(retention_zeros(op) | given)
    }

    /// Returns the time by the store's clock from which it may evict a log with this newest entry. [`Timestamp::MAX`] for never.
    pub(crate) fn expires_at(self, newest: Timestamp) -> Timestamp {
        if self.0 & Self::GIVEN > 0 {
            return Timestamp::MAX;
        }
        Timestamp::from_micros_saturating(newest.as_micros().saturating_add(self.micros()))
    }

    /// Returns the shortest lifetime in which a log with this newest entry does not expire before `expires_at`.
    ///
    /// The lifetime of a log which expires at the end of time, or later, is forever: its windows may be longer than the time that is left.
    pub(crate) fn until(expires_at: Timestamp, newest: Timestamp) -> Self {
        if expires_at == Timestamp::MAX {
            return Self(0);
        }
        Self((expires_at.micros_since(newest) | 1).leading_zeros() as u8)
    }

    /// Returns the longest window of an operation with this lifetime.
    pub(crate) fn window(self) -> Window {
        Window::from_micros(self.micros()).unwrap_or(Window::MAX)
    }

    /// Returns a duration longer than the window and at most twice as long, in microseconds.
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

    /// Whether the store may evict a log with this newest entry at `now` by its own clock.
    pub(crate) fn is_over(self, newest: Timestamp, now: Timestamp) -> bool {
        self.0 & Self::GIVEN == 0 && self.is_over_at(newest, now)
    }

    /// Whether a log with this newest entry has expired at a time that the caller vouches for.
    pub(crate) fn is_over_at(self, newest: Timestamp, given: Timestamp) -> bool {
        given.micros_since(newest) > self.micros()
    }
}
