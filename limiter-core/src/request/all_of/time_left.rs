//! How several stores share a decision's time.

use std::time::{Duration, Instant};

use crate::clock::instant;

/// A decision's time, of which each store that waits gets a share.
#[derive(Clone, Copy, Default)]
pub(super) struct TimeLeft {
    pub(super) timeout: Option<Duration>,
    /// When the first store had to wait.
    began: Option<Instant>,
}

impl TimeLeft {
    /// Returns the share of the next of `calls` stores: half of the remaining time, and all of it for the last. So any number
    /// of stores that never respond take nine tenths of the time, and the rest is left for the fallback's decision.
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
