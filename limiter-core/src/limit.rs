//! One limit: a maximum cost per window.

use std::time::Duration;

use crate::bounds::MAX_COST;
use crate::bounds::OutOfRange;
use crate::bounds::Quantity;
use crate::time::Window;

/// A limit of at most `max` units of cost in any window of a given length.
///
/// Parses from text such as `"100/60s"`, `"10 per second"` or `"5 per 10 minutes"`. The units are us, ms, s, m, h, d and
/// their English names. [`Display`](std::fmt::Display) prints the short form, which parses back to the same limit.
///
/// ```
/// use limiter_core::Limit;
/// let limit: Limit = "100 per minute".parse()?;
/// assert_eq!(limit, Limit::per_minute(100)?);
/// assert_eq!(limit.to_string(), "100/1m");
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    max: u64,
    window: Window,
}

impl Limit {
    /// Returns a limit of `max` units within any `window`.
    ///
    /// `max` is 1 to [`MAX_COST`]. `window` is a whole number of microseconds, 1 to 2^53 - 1.
    ///
    /// # Errors
    /// [`OutOfRange`] if `max` or `window` is out of range, or if `window` is not a whole number of microseconds.
    pub const fn new(max: u64, window: Duration) -> Result<Self, OutOfRange> {
        match Window::new(window) {
            Ok(window) => Self::with_window(max, window),
            Err(error) => Err(error),
        }
    }

    /// Returns a limit of `max` units within any `window`. `max` is 1 to [`MAX_COST`].
    ///
    /// # Errors
    /// [`OutOfRange`] if `max` is out of range.
    pub const fn with_window(max: u64, window: Window) -> Result<Self, OutOfRange> {
        if max == 0 || max > MAX_COST { Err(OutOfRange::new(Quantity::Max, max)) } else { Ok(Self { max, window }) }
    }

    /// Returns a limit of `max` units within any second.
    ///
    /// # Errors
    /// [`OutOfRange`] if `max` is out of range.
    pub const fn per_second(max: u64) -> Result<Self, OutOfRange> {
        Self::new(max, Duration::from_secs(1))
    }

    /// Returns a limit of `max` units within any 60 seconds.
    ///
    /// # Errors
    /// [`OutOfRange`] if `max` is out of range.
    pub const fn per_minute(max: u64) -> Result<Self, OutOfRange> {
        Self::new(max, Duration::from_secs(60))
    }

    /// Returns a limit of `max` units within any 60 minutes.
    ///
    /// # Errors
    /// [`OutOfRange`] if `max` is out of range.
    pub const fn per_hour(max: u64) -> Result<Self, OutOfRange> {
        Self::new(max, Duration::from_secs(3600))
    }

    /// Returns a limit of `max` units within any 24 hours.
    ///
    /// # Errors
    /// [`OutOfRange`] if `max` is out of range.
    pub const fn per_day(max: u64) -> Result<Self, OutOfRange> {
        Self::new(max, Duration::from_secs(86_400))
    }

    /// Returns a limit of [`MAX_COST`] units, which no real usage reaches.
    ///
    /// Use it with [`record`](crate::Limiter::record) to meter usage without limiting it. The log keeps every entry of the
    /// window.
    ///
    /// # Errors
    /// [`OutOfRange`] if `window` is out of range or not a whole number of microseconds.
    pub const fn meter(window: Duration) -> Result<Self, OutOfRange> {
        Self::new(MAX_COST, window)
    }

    /// Returns the maximum cost per window, in units.
    #[inline]
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the window.
    #[inline]
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Fills array elements that are never read.
    pub(crate) const UNUSED: Self = Self { max: 1, window: Window::MIN };
}
