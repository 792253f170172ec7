//! The valid ranges of costs, windows and timestamps, and the error for values out of range.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::policy::resolution;

/// The largest number of microseconds for which an IEEE double represents it and every smaller one exactly.
pub(crate) const MAX_MICROS: u64 = (1 << 53) - 1;

/// A day in microseconds.
const DAY: u64 = 86_400_000_000;

/// The largest cost of an operation and the largest maximum of a limit, 2^52.
///
/// The sum of two such numbers is still exact in an IEEE double, the number type of Redis scripts. A record with a higher
/// cost counts as `MAX_COST`, which fills every limit just the same.
pub const MAX_COST: u64 = 1 << 52;

/// The maximum number of limits in a policy.
pub const MAX_LIMITS: usize = 8;

/// The error for a maximum, a window, a resolution, a lease, a timestamp or a number of limits that is out of range. Converts into [`Error`].
// `Copy`, because a `const fn` cannot drop a value with a destructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    quantity: Quantity,
    found: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Max,
    Window,
    /// A window in nanoseconds that is not a whole number of microseconds.
    WindowNanos,
    /// A length in nanoseconds that a resolution or a lease, as named, cannot have.
    Unsupported(&'static str),
    /// The code of such a length that is longer than this window in microseconds.
    Above(&'static str, u64),
    /// The codes of two resolutions in one policy.
    TwoResolutions(usize),
    Timestamp,
    /// The number of limits in a policy.
    Limits,
}

/// Returns the number, or the largest of 64 bits.
pub(crate) const fn saturated(number: u128) -> u64 {
    if number >> 64 > 0 {
        u64::MAX
    } else {
        number as u64
    }
}

impl OutOfRange {
    pub(crate) const fn new(quantity: Quantity, found: u64) -> Self {
        Self { quantity, found }
    }

    /// Returns the message without numbers, which a `const` function cannot format.
    pub(crate) const fn expected(self) -> &'static str {
        match self.quantity {
            Quantity::Unsupported(_) | Quantity::Above(..) => {
                "expected a resolution or a lease of 1, 10 or 100 us, 1, 10 or 100 ms, 1 or 10 s, 1 or 10 m, 1 or 6 h or 1 d, no longer \
                 than the window"
            }
            Quantity::TwoResolutions(_) => "expected one resolution for the whole policy",
            _ => "out of range: expected 1 to 2^52 units within 1 to 2^53 - 1 µs",
        }
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found;
        match self.quantity {
            Quantity::Max => {
                write!(
                    f,
                    "limit of {found} is out of range, expected 1 to {MAX_COST} (2^52) units per window"
                )
            }
            Quantity::Window => {
                let days = found / DAY;
                let found = if found > 0 && found.is_multiple_of(DAY) {
                    format!("{days}d")
                } else {
                    format!("{found} µs")
                };
                let most = MAX_MICROS / DAY;
                write!(
                    f,
                    "window of {found} is out of range, expected 1 to {MAX_MICROS} µs ({most}d)"
                )
            }
            Quantity::WindowNanos => {
                let found = Duration::from_nanos(found);
                write!(
                    f,
                    "window of {found:?} is finer than a microsecond, expected whole microseconds"
                )
            }
            Quantity::Unsupported(of) => {
                let [shorter, longer] = resolution::nearest(found);
                let found = Duration::from_nanos(found);
                write!(
                    f,
                    "{of} of {found:?} is not supported; the nearest are {shorter} and {longer}"
                )
            }
            Quantity::Above(of, window) => {
                let (window, (_, found)) = (
                    Duration::from_micros(window),
                    resolution::RESOLUTIONS[found as usize],
                );
                write!(f, "{of} of {found} is longer than the window of {window:?}")
            }
            Quantity::TwoResolutions(first) => {
                let [first, second] =
                    [first, found as usize].map(|code| resolution::RESOLUTIONS[code].1);
                write!(
                    f,
                    "resolutions {first} and {second} differ, expected one resolution for the whole policy"
                )
            }
            Quantity::Limits => {
                let found = if found == 0 { "none" } else { "more" };
                write!(f, "a policy has 1 to {MAX_LIMITS} limits, found {found}")
            }
            Quantity::Timestamp => {
                write!(
                    f,
                    "timestamp of {found} µs is out of range, expected 0 to {MAX_MICROS} (2^53 - 1) µs"
                )
            }
        }
    }
}

impl std::error::Error for OutOfRange {}

impl From<OutOfRange> for Error {
    fn from(error: OutOfRange) -> Self {
        let kind = match error.quantity {
            Quantity::Timestamp => ErrorKind::InvalidTimestamp,
            _ => ErrorKind::InvalidLimit,
        };
        Self::new(kind, error.to_string())
    }
}
