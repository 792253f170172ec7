//! What a store's logs may be: a store may forget a log, and nobody can see when it does.

use std::collections::HashMap;

use limiter_core::store::Retention;
use limiter_core::{Timestamp, Window};

use super::clock::When;
use crate::conformance::sentence::Cite;
use crate::conformance::sentence::Sentence::{F1, F2};
use crate::conformance::sequence::plan::{Call, Log};
use crate::conformance::sequence::planner::Planner;
use crate::conformance::sequence::reply::{Kind, Reply};

/// One possible history of a store.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) planner: Planner,
    /// How long each log is kept after its newest entry; `None` if its last append was at a given time.
    kept: HashMap<Log, Option<Window>>,
}

impl Candidate {
    pub(crate) fn new(planner: Planner) -> Self {
        Self { planner, kept: HashMap::new() }
    }

    /// Whether the store may have forgotten a log by then. For given times it must keep it for a minute, which is longer than
    /// any session lasts unless it says otherwise.
    pub(crate) fn may_forget(&self, log: Log, now: Timestamp) -> bool {
        let (Some(newest), Some(Some(window))) = (self.planner.newest(log), self.kept.get(&log)) else { return false };
        !window.counts(newest, now)
    }

    /// The same history, but the log is forgotten. `None` if there is none.
    pub(crate) fn forgotten(&self, log: Log) -> Option<Self> {
        self.planner.newest(log)?;
        let mut other = self.clone();
        other.planner.forget(log);
        Some(other)
    }

    /// Whether a log is the same in another history: forgetting it has made no difference.
    pub(crate) fn has_the_log_of(&self, other: &Self, log: Log) -> bool {
        let entries = |candidate: &Self| {
            let entries = candidate.planner.entries(log);
            entries.iter().map(|entry| (entry.at, entry.cost, entry.id, entry.admitted)).collect::<Vec<_>>()
        };
        self.kept.get(&log) == other.kept.get(&log) && entries(self) == entries(other)
    }

    /// Says which sentence a store breaks that has forgotten the log by now.
    pub(crate) fn keeps(&self, log: Log) -> Cite {
        if self.kept.get(&log) == Some(&None) { F2.nth(1) } else { F1.nth(1) }
    }

    /// Adds a call.
    pub(crate) fn expect(&mut self, step: usize, call: Call, when: When) -> Result<&Reply, String> {
        self.planner.expect(step, call)?;
        let number = self.planner.plan().calls.len() - 1;
        let plan = self.planner.plan();
        if let (Call::Run { policy, limiter_policy, log, .. }, Reply::Decided(decided)) =
            (call, &plan.calls[number].expected)
            && decided.hidden.is_some_and(|hidden| hidden.outcome == Kind::Appended)
        {
            let policies = [Some(policy), limiter_policy].into_iter().flatten();
            let window = policies.map(|policy| Retention::of(&plan.policies[policy]).window).max();
            self.kept.insert(log, window.filter(|_| matches!(when, When::Store)));
        }
        Ok(&self.planner.plan().calls[number].expected)
    }
}
