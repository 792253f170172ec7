//! One limit: a maximum cost per window, exact or with a resolution.

use std::fmt;
use std::time::Duration;

use crate::bounds::{MAX_COST, OutOfRange, Quantity};
use crate::resolution::{RESOLUTIONS, code_of};
use crate::time::Window;

/// A limit of at most `max` units of cost in any window of a given length.
///
/// Parses from text such as `"100/60s"`, `"10 per second"` or `"5 per 10 minutes"`. The units are us, ms, s, m, h, d and
/// their English names. [`Display`](std::fmt::Display) prints the short form, which parses back to the same limit.
///
/// A limit is exact unless it has a [resolution](Self::with_resolution), as in `"1000000/30d~1h"`.
///
/// ```
/// use limiter_core::Limit;
/// let limit: Limit = "100 per minute".parse()?;
/// assert_eq!(limit, Limit::new(100, std::time::Duration::from_secs(60))?);
/// assert_eq!(limit.to_string(), "100/1m");
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    max: u64,
    /// The window, and from bit `CODE_SHIFT` on the code of the resolution. Decisions copy limits, so a limit stays small.
    packed: u64,
}

const CODE_SHIFT: u32 = 60;

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
        if max == 0 || max > MAX_COST {
            Err(OutOfRange::new(Quantity::Max, max))
        } else {
            Ok(Self {
                max,
                packed: window.as_micros(),
            })
        }
    }

    /// Returns the limit with a resolution, which keeps its logs small: entries that no limit can tell apart merge.
    ///
    /// No window ever admits more than the maximum. The price: a unit becomes available late, by less than `resolution`. A log holds
    /// about `window / resolution` entries, whatever the maximum. Receipts are only for [permits](crate::Request::permit) and
    /// calls with an [idempotency key](crate::Request::idempotency_key), and end after ten minutes.
    ///
    /// `resolution` is 1, 10 or 100 µs, 1, 10 or 100 ms, 1 or 10 s, 1 or 10 min, 1 or 6 h, or 1 d, and no longer than the window. The
    /// largest one that is at most a sixtieth of the window is a good start. Default: exact.
    ///
    /// ```
    /// use std::time::Duration;
    /// use limiter_core::Limit;
    /// let month = Duration::from_secs(30 * 86_400);
    /// let limit = Limit::new(1_000_000, month)?.with_resolution(Duration::from_secs(3600))?;
    /// assert_eq!(limit, "1000000/30d~1h".parse()?);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OutOfRange`] if `resolution` is not one of these, or longer than the window.
    pub const fn with_resolution(self, resolution: Duration) -> Result<Self, OutOfRange> {
        let nanos = resolution.as_nanos();
        let Some(code) = code_of(nanos) else {
            let nanos = if nanos >> 64 > 0 {
                u64::MAX
            } else {
                nanos as u64
            };
            return Err(OutOfRange::new(Quantity::ResolutionNanos, nanos));
        };
        let window = self.window().as_micros();
        if RESOLUTIONS[code].0 > window {
            return Err(OutOfRange::new(
                Quantity::ResolutionAbove(window),
                code as u64,
            ));
        }
        Ok(Self {
            max: self.max,
            packed: window | (code as u64) << CODE_SHIFT,
        })
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
        Window::from_low_bits(self.packed)
    }

    /// Returns the resolution. `None` if the limit is exact. See [`with_resolution`](Self::with_resolution).
    #[must_use]
    pub const fn resolution(&self) -> Option<Duration> {
        match self.resolution_micros() {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Returns the resolution in microseconds, 0 if the limit is exact.
    pub(crate) const fn resolution_micros(&self) -> u64 {
        RESOLUTIONS[(self.packed >> CODE_SHIFT) as usize].0
    }

    /// Fills array elements that are never read.
    pub(crate) const UNUSED: Self = Self {
        max: 1,
        packed: Window::MIN.as_micros(),
    };
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limit")
            .field(&format_args!("{self}"))
            .finish()
    }
}
