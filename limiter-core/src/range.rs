//! The ranges of numbers, and the error of a number out of range: small and `Copy`, so that `const` constructors can
//! return it.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The largest microsecond count that an IEEE double holds exactly, along with every smaller one.
pub(crate) const MAX_MICROS: u64 = (1 << 53) - 1;

/// The largest cost and the largest `max` of a limit: 2^52.
///
/// Two of them still add up exactly in an IEEE double, the number type of Redis scripts. A recorded cost above it counts
/// as `MAX_COST`; no limit can see the difference.
pub const MAX_COST: u64 = 1 << 52;

/// A maximum, window or timestamp is out of range. Converts into [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    quantity: Quantity,
    found: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Max,
    Window,
    /// A window in nanoseconds, because it is no whole number of microseconds.
    WindowNanos,
    Timestamp,
}

impl OutOfRange {
    pub(crate) const fn new(quantity: Quantity, found: u64) -> Self {
        Self { quantity, found }
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found;
        match self.quantity {
            Quantity::Max => {
                write!(f, "limit of {found} is out of range, expected 1 to {MAX_COST} (2^52) units per window")
            }
            Quantity::Window => write!(f, "window of {found} µs is out of range, expected 1 to {MAX_MICROS} µs"),
            Quantity::WindowNanos => {
                let found = Duration::from_nanos(found);
                write!(f, "window of {found:?} is finer than a microsecond, expected whole microseconds")
            }
            Quantity::Timestamp => {
                write!(f, "timestamp of {found} µs is out of range, expected at most {MAX_MICROS} (2^53 - 1)")
            }
        }
    }
}

impl std::error::Error for OutOfRange {}

impl From<OutOfRange> for Error {
    fn from(error: OutOfRange) -> Self {
        let kind = match error.quantity {
            Quantity::Timestamp => ErrorKind::InvalidTimestamp,
            Quantity::Max | Quantity::Window | Quantity::WindowNanos => ErrorKind::InvalidLimit,
        };
        Self::new(kind, error.to_string())
    }
}
