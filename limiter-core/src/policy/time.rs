//! Timestamps and windows, both in whole microseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind};
use crate::policy::bounds::{MAX_MICROS, OutOfRange, Quantity, saturated};

/// A point in time, in whole microseconds since the Unix epoch.
///
/// The range is 0 to 2^53 - 1, which ends in the year 2255. Every timestamp is therefore exact as an IEEE double, the
/// number type of Redis scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The latest timestamp, 2^53 - 1 µs.
    pub const MAX: Self = Self(MAX_MICROS);

    /// Returns the timestamp `micros` microseconds after the Unix epoch, or [`OutOfRange`] if `micros` is 2^53 or more.
    pub const fn from_micros(micros: u64) -> Result<Self, OutOfRange> {
        if micros > MAX_MICROS {
            Err(OutOfRange::new(Quantity::Timestamp, micros))
        } else {
            Ok(Self(micros))
        }
    }

    /// Returns the timestamp `micros` microseconds after the Unix epoch, or [`Timestamp::MAX`] if that is out of range.
    #[inline]
    #[must_use]
    pub const fn from_micros_saturating(micros: u64) -> Self {
        Self(if micros > MAX_MICROS {
            MAX_MICROS
        } else {
            micros
        })
    }

    /// Returns the system's time, or the nearest timestamp if that is out of range.
    #[must_use]
    pub fn from_system_saturating(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::EPOCH.saturating_add(since)
    }

    /// Returns the microseconds since the Unix epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the timestamp `by` later, or [`Timestamp::MAX`] if that is out of range.
    ///
    /// Truncates `by` to whole microseconds.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        let micros = u64::try_from(by.as_micros()).unwrap_or(MAX_MICROS);
        Self::from_micros_saturating(self.0.saturating_add(micros))
    }

    /// Returns the microseconds from `earlier` to this timestamp, or 0 if `earlier` is later.
    #[inline]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the timestamp in the lowest 53 bits. The higher bits are ignored, so a store can use them for other data.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub const fn from_low_bits(bits: u64) -> Self {
        Self(bits & MAX_MICROS)
    }
}

impl TryFrom<SystemTime> for Timestamp {
    type Error = Error;

    fn try_from(time: SystemTime) -> Result<Self, Error> {
        let since = time.duration_since(UNIX_EPOCH).map_err(|_| {
            let text = "the system time is before the Unix epoch, expected a later time";
            Error::new(ErrorKind::InvalidTimestamp, text)
        })?;
        Ok(Self::from_micros(
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        )?)
    }
}

/// A window's length, in whole microseconds from 1 to 2^53 - 1.
///
/// A length that is not a whole number of microseconds is rejected, never rounded. [`Display`](std::fmt::Display) uses the
/// largest unit that divides the length, so `60s` prints as `1m`. The text parses back to the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(u64);

impl Window {
    /// The shortest window, 1 µs.
    pub const MIN: Self = Self(1);
    /// The longest window, 2^53 - 1 µs (285 years).
    pub const MAX: Self = Self(MAX_MICROS);

    /// Returns a window of `length`, or [`OutOfRange`] if that is 0, 2^53 µs or more, or not a whole number of microseconds.
    pub const fn new(length: Duration) -> Result<Self, OutOfRange> {
        let micros = length.as_micros();
        let nanos = length.as_nanos();
        if !nanos.is_multiple_of(1000) {
            return Err(OutOfRange::new(Quantity::WindowNanos, saturated(nanos)));
        }
        Self::from_micros(saturated(micros))
    }

    /// Returns a window of `micros` microseconds, or [`OutOfRange`] if that is 0, or 2^53 or more.
    pub const fn from_micros(micros: u64) -> Result<Self, OutOfRange> {
        if micros == 0 || micros > MAX_MICROS {
            Err(OutOfRange::new(Quantity::Window, micros))
        } else {
            Ok(Self(micros))
        }
    }

    /// Returns the window in the lowest 53 bits, which are not all 0.
    #[inline]
    pub(crate) const fn from_low_bits(bits: u64) -> Self {
        Self(bits & MAX_MICROS)
    }

    /// Returns the length in microseconds.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the length as a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// Returns `true` if an entry appended at `at` counts in this window at `now`.
    ///
    /// An entry counts if its age is less than the window's length; at exactly that length it no longer counts. An entry
    /// later than `now` counts.
    #[inline]
    pub const fn counts(self, at: Timestamp, now: Timestamp) -> bool {
        now.0.saturating_sub(at.0) < self.0
    }

    /// Returns the microseconds from `now` until an entry appended at `at` leaves this window, or 0 if it no longer counts.
    #[inline]
    pub const fn micros_left(self, at: Timestamp, now: Timestamp) -> u64 {
        (at.0 + self.0).saturating_sub(now.0)
    }

    /// Returns the earliest time of an entry that counts in this window at `now`.
    ///
    /// No earlier entry counts. A store that sorts its entries by time can search for this edge.
    #[inline]
    pub const fn edge(self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_sub(self.0 - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_is_the_first_time_that_counts() {
        let at = Timestamp::from_micros_saturating;
        let most = MAX_MICROS;
        for (window, now) in [
            (1, 0),
            (1, 9),
            (10, 3),
            (10, 9),
            (10, 10),
            (10, 1 << 50),
            (most, most),
        ] {
            let window = Window::from_micros(window).unwrap();
            let edge = window.edge(at(now));
            assert!(window.counts(edge, at(now)), "{window} at {now}");
            let counts_before = edge > at(0) && window.counts(at(edge.as_micros() - 1), at(now));
            assert!(!counts_before, "{window} at {now}");
        }
    }

    #[test]
    fn a_system_clock_out_of_range_is_the_nearest_timestamp() {
        let end = UNIX_EPOCH + Duration::from_micros(MAX_MICROS);
        for (time, micros) in [
            (UNIX_EPOCH - Duration::from_secs(1), 0),
            (UNIX_EPOCH + Duration::from_nanos(1_999), 1),
            (end, MAX_MICROS),
            (end + Duration::from_micros(1), MAX_MICROS),
            (end + Duration::from_secs(1 << 40), MAX_MICROS),
        ] {
            let timestamp = Timestamp::from_system_saturating(time);
            assert_eq!(timestamp.as_micros(), micros, "{time:?}");
        }
    }

    #[test]
    fn windows_are_whole_microseconds_in_range() {
        let seconds = Duration::from_secs(u64::MAX);
        let nanos = Duration::from_nanos(1_500);
        for (length, message) in [
            (
                Duration::ZERO,
                "window of 0 µs is out of range, expected 1 to 9007199254740991 µs (104249d)",
            ),
            (
                nanos,
                "window of 1.5µs is finer than a microsecond, expected whole microseconds",
            ),
            (Duration::MAX, "is finer than a microsecond"),
            (seconds, "window of 18446744073709551615 µs is out of range"),
        ] {
            let error = Window::new(length).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(Error::from(error).kind(), ErrorKind::InvalidLimit);
        }
        let longest = Window::new(Duration::from_micros(MAX_MICROS));
        assert_eq!(longest, Ok(Window::MAX));
    }
}
