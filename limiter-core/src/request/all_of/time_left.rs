//! How several stores share the time of a decision.

use std::time::{Duration, Instant};

use crate::clock::instant;

/// The time of a decision, of which each store that has to wait gets a share.
#[derive(Clone, Copy, Default)]
pub(super) struct TimeLeft {
    pub(super) timeout: Option<Duration>,
    /// When the first store had to wait.
    began: Option<Instant>,
}

impl TimeLeft {
    /// Returns the share of the next of `calls` stores: half of what is left, and all of it for the last. So any number of stores that
    /// never answer takes nine tenths of the time, and the rest is for what decides in their place.
    pub(super) fn share(&mut self, calls: usize) -> Option<Duration> {
        let timeout = self.timeout?;
        let now = instant();
        let began = *self.began.get_or_insert(now);
        let left = (timeout - timeout / 10).saturating_sub(now.saturating_duration_since(began));
        Some(if calls > 1 { left / 2 } else { left })
    }

    pub(super) fn restart(&mut self) {
        self.began = None;
    }
}
