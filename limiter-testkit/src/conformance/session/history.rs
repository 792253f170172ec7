//! The expected contents of a store's logs. A store may forget a log at a time that callers cannot observe, and a dropped call may
//! take effect or not.

use std::collections::{BTreeMap, HashMap};

use limiter_core::store::{At, Retention};
use limiter_core::{Receipt, Timestamp, Window};

use crate::conformance::sentence::Sentence;
use crate::conformance::sentence::Sentence::{F1, F2};
use crate::conformance::sequence::call_result::{CallResult, RawFacts};
use crate::conformance::sequence::mismatch::{Mismatch, mismatch};
use crate::conformance::sequence::planner::Planner;
use crate::conformance::sequence::{Call, Log};

/// The history of a store, as far as its results show it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) planner: Planner,
    /// How long each log is kept after its newest entry. `None` if its last append was at a given time.
    kept: HashMap<Log, Option<Window>>,
    /// The number of a dropped call that has not taken effect, and when it was made.
    dropped: Option<(usize, At)>,
}

impl History {
    pub(crate) fn new(planner: Planner) -> Self {
        Self {
            planner,
            kept: HashMap::new(),
            dropped: None,
        }
    }

    /// Returns `true` if the store may have forgotten a log by `now`. It must keep entries at given times for a minute,
    /// which is longer than a session lasts by default.
    pub(crate) fn may_forget(&self, log: Log, now: Timestamp) -> bool {
        let (Some(newest), Some(Some(window))) = (self.planner.newest(log), self.kept.get(&log))
        else {
            return false;
        };
        !window.counts(newest, now)
    }

    /// Returns the same history with the log forgotten. `None` if there is no log.
    pub(crate) fn forgotten(&self, log: Log) -> Option<Self> {
        self.planner.newest(log)?;
        let mut other = self.clone();
        other.planner.forget(log);
        Some(other)
    }

    /// Returns the sentence that a store breaks if it has forgotten the log by now.
    pub(crate) fn keeps(&self, log: Log) -> Sentence {
        if self.kept.get(&log) == Some(&None) {
            F2
        } else {
            F1
        }
    }

    /// Adds a call, and compares the store's result with the expected one. `receipts` are the store's receipts, by step.
    pub(crate) fn compare(
        &mut self,
        step: usize,
        (call, when): (Call, At),
        receipts: &BTreeMap<usize, Receipt>,
        got: &CallResult,
    ) -> Result<(), Mismatch> {
        let result = self.planner.compare(step, call, receipts, got);
        if let Some(planned) = self.planner.plan.calls.last().cloned() {
            self.keep(call, &planned.expected, when);
        }
        result.map_err(|got| mismatch(&self.planner.plan, &got))
    }

    /// Adds a call that was dropped. It has not taken effect yet.
    pub(crate) fn drop_call(&mut self, step: usize, call: Call, when: At) {
        self.dropped = Some((self.planner.skip(step, call), when));
    }

    /// Returns the same history after the dropped call took effect. At the store's clock, it appended the entry at
    /// `newest`.
    pub(crate) fn with_dropped_call(&self, newest: Option<Timestamp>) -> Option<Self> {
        let (number, when) = self.dropped?;
        let mut other = self.clone();
        other.dropped = None;
        let expected = other
            .planner
            .apply_dropped(number, newest.filter(|_| when == At::StoreClock));
        other.keep(other.planner.plan.calls[number].call, &expected, when);
        Some(other)
    }

    /// Notes how long the log is kept after an append.
    fn keep(&mut self, call: Call, expected: &CallResult, when: At) {
        if let CallResult::Decided(decided) = expected
            && decided
                .raw_facts
                .is_some_and(|raw_facts| raw_facts.outcome == RawFacts::APPENDED)
        {
            let plan = &self.planner.plan;
            let policies = [Some(call.policy), call.limiter_policy]
                .into_iter()
                .flatten();
            let window = policies
                .map(|policy| Retention::of(&plan.policies[policy]).window)
                .max();
            self.kept
                .insert(call.log, window.filter(|_| matches!(when, At::StoreClock)));
        }
    }
}
