//! The cost within a window that ends now.

use std::collections::VecDeque;

/// How many entries are kept apart. Beyond it, entries closer than a 4,096th of the window leave together, which no
/// pixel can show.
const EXACT: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Sliding {
    window: u64,
    entries: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Sliding {
    pub(super) fn new(window: u64) -> Self {
        Self { window, entries: VecDeque::new(), sum: 0 }
    }

    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds a cost at a time no earlier than the newest.
    pub(super) fn add(&mut self, at: u64, cost: u64) {
        self.sum = self.sum.saturating_add(cost);
        if self.entries.len() >= EXACT
            && let Some(newest) = self.entries.back_mut()
            && at - newest.0 < self.window / 4096
        {
            newest.1 = newest.1.saturating_add(cost);
            return;
        }
        self.entries.push_back((at, cost));
    }

    /// When the oldest entry leaves.
    pub(super) fn next_leaves(&self) -> Option<u64> {
        self.entries.front().map(|(at, _)| at.saturating_add(self.window))
    }

    /// Removes the oldest entry.
    pub(super) fn leave(&mut self) {
        if let Some((_, cost)) = self.entries.pop_front() {
            self.sum = if self.entries.is_empty() { 0 } else { self.sum.saturating_sub(cost) };
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.sum = 0;
    }
}
