//! One limit: a maximum cost per window, exact or with a resolution, and possibly with a lease.

use std::fmt;
use std::time::Duration;

use crate::policy::bounds::{MAX_COST, OutOfRange, Quantity, saturated};
use crate::policy::resolution::{self, RESOLUTIONS, code_of};
use crate::policy::time::Window;

/// A limit of at most `max` units of cost in any window of a given length.
///
/// Parses from text such as `"100/60s"`, `"10 per second"` or `"5 per 10 minutes"`. The units are us, ms, s, m, h, d and
/// their English names. [`Display`](std::fmt::Display) prints the short form, which parses back to the same limit.
///
/// A limit is exact unless it has a [resolution](Self::with_resolution), as in `"1000000/30d~1h"`. With a
/// [lease](Self::with_lease), as in `"100000/1m+1s"`, most acquires need no call to the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    max: u64,
    /// The counted window, from bit `LEASE_SHIFT` on the lease's code, and from `RESOLUTION_SHIFT` on the resolution's.
    /// Decisions copy limits, so a limit stays small.
    packed: u64,
}

const LEASE_SHIFT: u32 = 56;
const RESOLUTION_SHIFT: u32 = 60;
const CODE_MASK: u64 = 15;

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

    /// Returns the limit with a resolution, which keeps its logs small: entries merge once no limit can distinguish them.
    ///
    /// No window ever admits more than the maximum. The price: a unit becomes available late, by less than `resolution`. A log holds
    /// about `window / resolution` entries, regardless of the maximum. [Permits](crate::request::Acquire::permit) and
    /// [idempotency keys](crate::request::Acquire::idempotency_key) need an exact limit in the same policy, and last as long as its window. All
    /// limits of a policy that have a resolution have the same one.
    ///
    /// `resolution` is 1, 10 or 100 µs, 1, 10 or 100 ms, 1 or 10 s, 1 or 10 min, 1 or 6 h, or 1 d, and no longer than the window. The
    /// longest one up to a sixtieth of the window is a good start. Default: exact.
    ///
    /// # Errors
    /// [`OutOfRange`] for any other `resolution`.
    pub const fn with_resolution(self, resolution: Duration) -> Result<Self, OutOfRange> {
        let code = match self.code("resolution", resolution) {
            Ok(code) => code,
            Err(error) => return Err(error),
        };
        let others = self.packed & !(CODE_MASK << RESOLUTION_SHIFT);
        Ok(Self {
            max: self.max,
            packed: others | code << RESOLUTION_SHIFT,
        })
    }

    /// Returns the limit with a lease, with which a `Guarded` store (of `limiter-wrappers`) decides most acquires without calling the store.
    ///
    /// No window ever admits more than the maximum. The price: the limit counts windows that are longer by `lease`, so a unit
    /// becomes available that much later. Acquires have no receipts, apart from [permits](crate::request::Acquire::permit) and calls with an
    /// [idempotency key](crate::request::Acquire::idempotency_key).
    ///
    /// `lease` is one of the lengths of [resolutions](Self::with_resolution), and no longer than the window. The longest one that is at
    /// most a sixtieth of the window is a good start. Default: no lease. A lease that cannot be used still has its price, as with a
    /// maximum below 17, beside a limit without a lease, or without a `Guarded` store: `limiter_wrappers::can_lease` checks a policy.
    ///
    /// # Errors
    /// [`OutOfRange`] if `lease` is not one of these, or longer than the window, or if the sum of both is out of range.
    pub const fn with_lease(self, lease: Duration) -> Result<Self, OutOfRange> {
        let code = match self.code("lease", lease) {
            Ok(code) => code,
            Err(error) => return Err(error),
        };
        let stated = self.stated_window().as_micros();
        match Window::from_micros(stated + RESOLUTIONS[code as usize].0) {
            Ok(counted) => Ok(Self {
                max: self.max,
                packed: self.packed & CODE_MASK << RESOLUTION_SHIFT
                    | code << LEASE_SHIFT
                    | counted.as_micros(),
            }),
            Err(error) => Err(error),
        }
    }

    /// Returns the code of a length that is no longer than the stated window.
    const fn code(self, of: &'static str, length: Duration) -> Result<u64, OutOfRange> {
        let nanos = length.as_nanos();
        let Some(code) = code_of(nanos) else {
            return Err(OutOfRange::new(Quantity::Unsupported(of), saturated(nanos)));
        };
        let stated = self.stated_window().as_micros();
        if RESOLUTIONS[code].0 > stated {
            return Err(OutOfRange::new(Quantity::Above(of, stated), code as u64));
        }
        Ok(code as u64)
    }

    /// Returns the maximum cost per window, in units.
    #[inline]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the window that is counted: with a [lease](Self::with_lease), the sum of the stated window and the lease.
    #[inline]
    pub const fn window(&self) -> Window {
        Window::from_low_bits(self.packed)
    }

    /// Returns the window as stated: none of this length ever admits more than the maximum. It differs from
    /// [`window`](Self::window) only with a [lease](Self::with_lease).
    pub const fn stated_window(&self) -> Window {
        Window::from_low_bits(self.window().as_micros() - self.lease_micros())
    }

    /// Returns the resolution. `None` if the limit is exact. See [`with_resolution`](Self::with_resolution).
    pub const fn resolution(&self) -> Option<Duration> {
        resolution::length((self.packed >> RESOLUTION_SHIFT) as u8)
    }

    /// Returns the lease. `None` if there is none. See [`with_lease`](Self::with_lease).
    pub const fn lease(&self) -> Option<Duration> {
        resolution::length(self.lease_code())
    }

    /// Returns an error if two of the limits have different resolutions.
    pub(crate) const fn check_resolutions(limits: &[Self]) -> Result<(), OutOfRange> {
        let mut first = 0;
        let mut i = 0;
        while i < limits.len() {
            let code = (limits[i].packed >> RESOLUTION_SHIFT) as usize;
            if first == 0 {
                first = code;
            } else if code > 0 && code != first {
                return Err(OutOfRange::new(
                    Quantity::TwoResolutions(first),
                    code as u64,
                ));
            }
            i += 1;
        }
        Ok(())
    }

    /// Returns the resolution in microseconds, 0 if the limit is exact.
    pub(crate) const fn resolution_micros(&self) -> u64 {
        RESOLUTIONS[(self.packed >> RESOLUTION_SHIFT) as usize].0
    }

    /// Returns the lease in microseconds, 0 if there is none.
    pub(crate) const fn lease_micros(&self) -> u64 {
        RESOLUTIONS[self.lease_code() as usize].0
    }

    pub(crate) const fn lease_code(&self) -> u8 {
        (self.packed >> LEASE_SHIFT & CODE_MASK) as u8
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
