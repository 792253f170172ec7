//! JSON lines, and the form of a decision in them.

use std::io::{self, Write};
use std::time::Duration;

use limiter_core::Decision;
use serde::Serialize;

/// The fields of a decision on its binding limit, in the order of the JSON. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DecisionFields {
    /// Whether the request fitted every limit.
    pub(crate) allowed: bool,
    /// The maximum.
    pub(crate) limit: u64,
    /// The units used in the window.
    pub(crate) used: u64,
    /// The units left of the maximum.
    pub(crate) remaining: u64,
    /// How long to wait. `None` if the request was allowed.
    pub(crate) retry_after_us: Option<u64>,
    /// The time until the next unit becomes available.
    pub(crate) refill_after_us: u64,
    /// The time until the window is empty.
    pub(crate) reset_after_us: u64,
}

impl From<&Decision> for DecisionFields {
    fn from(decision: &Decision) -> Self {
        Self {
            allowed: decision.fits(),
            limit: decision.limit().max(),
            used: decision.used(),
            remaining: decision.remaining(),
            retry_after_us: decision.retry_after().map(micros),
            refill_after_us: micros(decision.refill_after()),
            reset_after_us: micros(decision.reset_after()),
        }
    }
}

/// Writes a value as one line.
pub(crate) fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Returns a duration in whole microseconds.
#[must_use]
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
