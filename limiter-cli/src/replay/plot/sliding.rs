//! The total cost within a sliding window.

use std::collections::VecDeque;

/// The maximum number of separate entries. Beyond it, entries closer than 1/4096 of the window expire together, which
/// no pixel can show.
const MAX_ENTRIES: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct SlidingSum {
    window: u64,
    entries: VecDeque<(u64, u64)>,
    sum: u64,
}

impl SlidingSum {
    pub(super) fn new(window: u64) -> Self {
        Self { window, entries: VecDeque::new(), sum: 0 }
    }

    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds a cost. `at` must not be before the newest entry.
    pub(super) fn add(&mut self, at: u64, cost: u64) {
        self.sum = self.sum.saturating_add(cost);
        if self.entries.len() >= MAX_ENTRIES
            && let Some(newest) = self.entries.back_mut()
            && at - newest.0 < self.window / 4096
        {
            newest.1 = newest.1.saturating_add(cost);
            return;
        }
        self.entries.push_back((at, cost));
    }

    /// Returns when the oldest entry expires.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.entries.front().map(|(at, _)| at.saturating_add(self.window))
    }

    /// Removes the oldest entry.
    pub(super) fn remove_oldest(&mut self) {
        if let Some((_, cost)) = self.entries.pop_front() {
            self.sum = if self.entries.is_empty() { 0 } else { self.sum.saturating_sub(cost) };
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.sum = 0;
    }
}
