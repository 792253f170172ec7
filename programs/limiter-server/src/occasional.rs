//! Log lines that clients could otherwise repeat without end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an event is not logged after a logged one.
const PAUSE: Duration = Duration::from_secs(10);

/// Limits the log lines about one kind of event to one in ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Occasional(Mutex<Option<Instant>>);

impl Occasional {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns `true` if the event that just happened is to be logged.
    pub(crate) fn is_due(&self) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.is_none_or(|logged| logged.elapsed() >= PAUSE);
        if is_due {
            *logged = Some(Instant::now());
        }
        is_due
    }
}
