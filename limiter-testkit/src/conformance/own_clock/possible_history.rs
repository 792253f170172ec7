//! Possible contents of a store's logs. A store may forget a log at a time that callers cannot observe.

use std::collections::HashMap;

use limiter_core::store::Retention;
use limiter_core::{Timestamp, Window};

use super::clock::When;
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{F1, F2};
use crate::conformance::sequence::call_result::{CallResult, OutcomeKind};
use crate::conformance::sequence::planner::Planner;
use crate::conformance::sequence::{Call, Log};

/// One possible history of a store.
#[derive(Clone, Debug)]
pub(crate) struct PossibleHistory {
    pub(crate) planner: Planner,
    /// How long each log is kept after its newest entry; `None` if its last append was at a given time.
    kept: HashMap<Log, Option<Window>>,
}

impl PossibleHistory {
    pub(crate) fn new(planner: Planner) -> Self {
        Self { planner, kept: HashMap::new() }
    }

    /// Returns whether the store may have forgotten a log by `now`. It must keep entries at given times for a minute,
    /// which is longer than a session lasts by default.
    pub(crate) fn may_forget(&self, log: Log, now: Timestamp) -> bool {
        let (Some(newest), Some(Some(window))) = (self.planner.newest(log), self.kept.get(&log)) else { return false };
        !window.counts(newest, now)
    }

    /// Returns the same history with the log forgotten; `None` if there is no log.
    pub(crate) fn forgotten(&self, log: Log) -> Option<Self> {
        self.planner.newest(log)?;
        let mut other = self.clone();
        other.planner.forget(log);
        Some(other)
    }

    /// Returns whether the log is the same in both histories, so that forgetting it made no difference.
    pub(crate) fn has_the_log_of(&self, other: &Self, log: Log) -> bool {
        let entries = |history: &Self| {
            let entries = history.planner.entries(log);
            entries.iter().map(|entry| (entry.at, entry.cost, entry.id, entry.admitted)).collect::<Vec<_>>()
        };
        self.kept.get(&log) == other.kept.get(&log) && entries(self) == entries(other)
    }

    /// Returns the sentence that a store breaks if it has forgotten the log by now.
    pub(crate) fn keeps(&self, log: Log) -> Citation {
        if self.kept.get(&log) == Some(&None) { F2.nth(1) } else { F1.nth(1) }
    }

    /// Adds a call.
    pub(crate) fn expect(&mut self, step: usize, call: Call, when: When) -> Result<(), String> {
        self.planner.expect(step, call)?;
        let number = self.planner.plan().calls.len() - 1;
        let plan = self.planner.plan();
        if let (Call::Run { policy, limiter_policy, log, .. }, CallResult::Decided(decided)) =
            (call, &plan.calls[number].expected)
            && decided.raw_facts.is_some_and(|raw_facts| raw_facts.outcome == OutcomeKind::Appended)
        {
            let policies = [Some(policy), limiter_policy].into_iter().flatten();
            let window = policies.map(|policy| Retention::of(&plan.policies[policy]).window).max();
            self.kept.insert(log, window.filter(|_| matches!(when, When::Store)));
        }
        Ok(())
    }
}
