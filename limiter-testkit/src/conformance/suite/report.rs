//! The phases of the suite, and the report of a run.

use std::collections::HashMap;

/// A phase of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The [golden traces](crate::golden): worked examples decided by hand.
    Golden,
    /// Handwritten cases at given times: at least one for every sentence that a sequence of calls can break, and the
    /// ends of every range.
    Cases,
    /// One log with a very large number of entries.
    LongLog,
    /// The handwritten cases at the store's clock, and the progress of that clock.
    StoreClock,
    /// Logs shortly before the store may forget them, and afterwards.
    Forgetting,
    /// Futures that are dropped before they finish.
    Cancel,
    /// Several handles of one store, in turn and concurrently. Nothing runs with a single handle.
    Handles,
    /// Random sequences, which are shrunk if they fail.
    Random,
    /// Many concurrent tasks on one key.
    Contention,
    /// Several operations as one, if the store applies them together: random calls, and concurrent tasks.
    Several,
}

/// How much a suite checked. Every check passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a report states how much was checked"]
pub struct Report {
    /// The calls of all phases.
    pub calls: u64,
    /// The checks and the calls of each phase.
    by_phase: HashMap<Phase, (u64, u64)>,
}

impl Report {
    /// Returns how much a phase checked: traces, cases, entries of the long log, sequences, or calls of concurrent tasks. A case
    /// counts once per run. 0 for a phase that did not run, and for [`Phase::Several`].
    #[must_use]
    pub fn checks_of(&self, phase: Phase) -> u64 {
        self.by_phase.get(&phase).map_or(0, |counts| counts.0)
    }

    /// Returns the number of calls that a phase made.
    #[must_use]
    pub fn calls_of(&self, phase: Phase) -> u64 {
        self.by_phase.get(&phase).map_or(0, |counts| counts.1)
    }

    pub(crate) fn count(&mut self, phase: Phase, (checks, calls): (u64, u64)) {
        self.calls += calls;
        let (all_checks, all_calls) = self.by_phase.entry(phase).or_default();
        *all_checks += checks;
        *all_calls += calls;
    }
}
