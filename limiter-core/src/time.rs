//! Whole microseconds: points in time and lengths of windows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Error, ErrorKind};

/// The largest microsecond count that a double holds exactly together with all its predecessors.
const MAX_MICROS: u64 = (1 << 53) - 1;

/// A point in time: whole microseconds since the Unix epoch, below 2^53 (the year 2255).
///
/// The bound keeps a timestamp exact as an IEEE double, which is what a Redis sorted set stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The latest point in time, 2^53 - 1 µs.
    pub const MAX: Self = Self(MAX_MICROS);

    /// The point `micros` microseconds after the Unix epoch.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidTimestamp`] from 2^53 on.
    pub fn from_micros(micros: u64) -> Result<Self, Error> {
        if micros > MAX_MICROS {
            return Err(Error::new(
                ErrorKind::InvalidTimestamp,
                format!("timestamp of {micros} µs is out of range, expected at most {MAX_MICROS} (2^53 - 1)"),
            ));
        }
        Ok(Self(micros))
    }

    /// The point `micros` microseconds after the Unix epoch, or [`Timestamp::MAX`] where that is out of range.
    #[inline]
    #[must_use]
    pub const fn from_micros_saturating(micros: u64) -> Self {
        Self(if micros > MAX_MICROS { MAX_MICROS } else { micros })
    }

    /// The point in time that the lowest 53 bits tell, where a store keeps something else in the others.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub const fn from_low_bits(bits: u64) -> Self {
        Self(bits & MAX_MICROS)
    }

    /// Microseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This point moved later by `by`, cut to whole microseconds and to [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        let micros = u64::try_from(by.as_micros()).unwrap_or(MAX_MICROS);
        Self::from_micros_saturating(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to this point, 0 if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl TryFrom<SystemTime> for Timestamp {
    type Error = Error;

    fn try_from(time: SystemTime) -> Result<Self, Error> {
        let since = time.duration_since(UNIX_EPOCH).map_err(|e| {
            Error::new(ErrorKind::InvalidTimestamp, "system time is before the Unix epoch").with_source(e)
        })?;
        Self::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

/// The length of a window: whole microseconds, from 1 to 2^53 - 1.
///
/// Anything finer than a microsecond is rejected, never rounded. [`Display`](std::fmt::Display) prints the largest unit
/// that divides the length (`60s` is `1m`), and the text parses back to the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(u64);

impl Window {
    /// The shortest window, 1 µs.
    pub const MIN: Self = Self(1);
    /// The longest window, 2^53 - 1 µs (285 years).
    pub const MAX: Self = Self(MAX_MICROS);

    /// A window of `micros` microseconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLimit`] for 0 and from 2^53 on.
    pub fn from_micros(micros: u64) -> Result<Self, Error> {
        if (1..=MAX_MICROS).contains(&micros) {
            return Ok(Self(micros));
        }
        Err(Error::new(
            ErrorKind::InvalidLimit,
            format!("window of {micros} µs is out of range, expected 1 to {MAX_MICROS} µs"),
        ))
    }

    /// The length in microseconds.
    #[inline]
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The length as a [`Duration`].
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// Whether an entry made at `at` counts in this window at `now`: its age is less than the window's length.
    ///
    /// An entry aged exactly the length no longer counts. An entry later than `now` counts.
    #[inline]
    #[must_use]
    pub const fn counts(self, at: Timestamp, now: Timestamp) -> bool {
        now.0.saturating_sub(at.0) < self.0
    }

    /// Microseconds from `now` until an entry made at `at` leaves this window, 0 if it has left.
    #[inline]
    #[must_use]
    pub const fn micros_left(self, at: Timestamp, now: Timestamp) -> u64 {
        (at.0 + self.0).saturating_sub(now.0)
    }
}

impl TryFrom<Duration> for Window {
    type Error = Error;

    fn try_from(length: Duration) -> Result<Self, Error> {
        if !length.subsec_nanos().is_multiple_of(1000) {
            return Err(Error::new(
                ErrorKind::InvalidLimit,
                format!("window of {length:?} is finer than a microsecond, expected whole microseconds"),
            ));
        }
        Self::from_micros(u64::try_from(length.as_micros()).unwrap_or(u64::MAX))
    }
}
