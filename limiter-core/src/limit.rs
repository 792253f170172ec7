//! A maximum cost in a window.

use std::time::Duration;

use crate::{Error, ErrorKind, Window};

/// The largest cost and the largest `max` of a limit: 2^52.
///
/// Two of them still add up exactly in an IEEE double, which is what Redis computes with. A recorded cost above it
/// counts as this much, which no limit can tell apart.
pub const MAX_COST: u64 = 1 << 52;

/// At most `max` units of cost within any `window`.
///
/// Parses from `"100/60s"`, `"10 per second"`, `"5 per 10 minutes"` (units us, ms, s, m, h, d and their names);
/// [`Display`](std::fmt::Display) prints the short form, which parses back to the same limit.
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
    pub(crate) max: u64,
    pub(crate) window: Window,
}

impl Limit {
    /// At most `max` units, 1 to [`MAX_COST`], within any `window`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLimit`] if `max` or the window is out of range, or the window is finer than a microsecond.
    pub fn new(max: u64, window: Duration) -> Result<Self, Error> {
        Self::over(max, Window::try_from(window)?)
    }

    /// At most `max` units, 1 to [`MAX_COST`], within any `window`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLimit`] if `max` is out of range.
    pub fn over(max: u64, window: Window) -> Result<Self, Error> {
        if (1..=MAX_COST).contains(&max) {
            return Ok(Self { max, window });
        }
        Err(Error::new(
            ErrorKind::InvalidLimit,
            format!("limit of {max} is out of range, expected 1 to {MAX_COST} (2^52) units per window"),
        ))
    }

    /// At most `max` units in any second. Errors as [`Limit::new`].
    pub fn per_second(max: u64) -> Result<Self, Error> {
        Self::new(max, Duration::from_secs(1))
    }

    /// At most `max` units in any 60 seconds. Errors as [`Limit::new`].
    pub fn per_minute(max: u64) -> Result<Self, Error> {
        Self::new(max, Duration::from_secs(60))
    }

    /// At most `max` units in any 60 minutes. Errors as [`Limit::new`].
    pub fn per_hour(max: u64) -> Result<Self, Error> {
        Self::new(max, Duration::from_secs(3600))
    }

    /// At most `max` units in any 24 hours. Errors as [`Limit::new`].
    pub fn per_day(max: u64) -> Result<Self, Error> {
        Self::new(max, Duration::from_secs(86_400))
    }

    /// A meter: a limit that nothing reaches ([`MAX_COST`]), to count usage in `window` with
    /// [`record`](crate::Limiter::record). Its log keeps every entry of the window.
    #[must_use]
    pub const fn meter(window: Window) -> Self {
        Self { max: MAX_COST, window }
    }

    /// The most units that fit in the window.
    #[inline]
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The window.
    #[inline]
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }
}
