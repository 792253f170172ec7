//! The phases of the suite, and what was run.

/// A phase of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The [golden traces](crate::golden): worked examples decided by hand.
    Golden,
    /// Cases written by hand, at given times: at least one for every sentence that a sequence of calls can break, and the
    /// ends of every range.
    Cases,
    /// One log of very many entries.
    LongLog,
    /// The same cases at the store's own clock, and how that clock runs.
    StoreClock,
    /// Logs until shortly before the store may forget them, and after.
    Forgetting,
    /// Futures that are dropped before they have finished.
    Cancel,
    /// Several handles of one store, in turn and at once. Without a second handle there is nothing to run.
    Handles,
    /// All short sequences.
    Exhaustive,
    /// Random sequences, shrunk when they fail.
    Random,
    /// Many tasks on one key.
    Contention,
}

impl Phase {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 10] = [
        Self::Golden,
        Self::Cases,
        Self::LongLog,
        Self::StoreClock,
        Self::Forgetting,
        Self::Cancel,
        Self::Handles,
        Self::Exhaustive,
        Self::Random,
        Self::Contention,
    ];

    /// Whether the phase depends on the seed.
    pub(crate) const fn is_random(self) -> bool {
        matches!(self, Self::Exhaustive | Self::Random)
    }
}

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
