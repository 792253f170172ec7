//! When a future is dropped.

use std::fmt;
use std::time::Duration;

use crate::conformance::sleep::within;
use crate::poll_times::poll_times;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DropAfter {
    Polls(usize),
    Micros(u64),
}

impl fmt::Display for DropAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Polls(1) => f.write_str("1 poll"),
            Self::Polls(polls) => write!(f, "{polls} polls"),
            Self::Micros(micros) => write!(f, "{micros} \u{b5}s"),
        }
    }
}

impl DropAfter {
    /// Polls a future for this long. Returns `None` if it has not finished.
    pub(crate) async fn poll<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Micros(micros) => within(Duration::from_micros(micros), future).await,
            Self::Polls(polls) => poll_times(polls, future).await,
        }
    }
}
