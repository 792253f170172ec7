//! What was run.

use super::Phase;

/// What a suite has run, all of it with the right result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a report says how much was checked"]
pub struct Report {
    /// Rows of the golden traces.
    pub golden_rows: u64,
    /// Cases written by hand, counted each time that they were run in one of the phases.
    pub cases: u64,
    /// The entries of the longest log.
    pub longest_log: u64,
    /// Short sequences.
    pub short_sequences: u64,
    /// Random sequences.
    pub random_sequences: u64,
    /// Calls of tasks that ran at once.
    pub contended: u64,
    /// Calls in all.
    pub operations: u64,
    by_phase: [u64; Phase::ALL.len()],
}

impl Report {
    /// Returns how many calls a phase made.
    #[must_use]
    pub fn operations_of(&self, phase: Phase) -> u64 {
        self.by_phase[phase as usize]
    }

    pub(crate) fn count(&mut self, phase: Phase, operations: u64) {
        self.operations += operations;
        self.by_phase[phase as usize] += operations;
    }
}
