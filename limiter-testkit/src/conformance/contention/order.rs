//! A serial order of the calls of several tasks.

use std::collections::{BTreeMap, HashSet};

use limiter_core::{LimitStatus, Receipt, Timestamp};

use crate::case::Verb;
use crate::conformance::call::{Call, LogId};
use crate::conformance::model::Model;
use crate::conformance::result::CallResult;

/// The number of calls that one search tries. A search that succeeds tries little more calls than there are.
const MAX_TRIES: usize = 5_000;

/// A call that a task made, or several as one.
pub(super) struct Made {
    pub(super) task: usize,
    /// With their steps. A settlement refers to the step whose receipt it uses.
    pub(super) calls: Vec<(usize, Call)>,
    /// The results. `None` if the store could not make the calls as one.
    pub(super) got: Option<Vec<CallResult>>,
    /// The receipts of the task so far, by step.
    pub(super) receipts: BTreeMap<usize, Receipt>,
}

impl Made {
    fn may_have_changed(&self) -> bool {
        let mut got = self.got.iter().flatten();
        got.any(CallResult::may_have_changed)
    }

    /// Returns the values that are likely to grow from one call to the next: the time, and the usage.
    fn likely_place(&self) -> (u64, bool, u64) {
        let is_idle = !self.may_have_changed();
        let Some(status) = self.got.iter().flatten().find_map(CallResult::status) else {
            return (u64::MAX, is_idle, 0);
        };
        let limits = status.limits();
        let used = limits.iter().map(LimitStatus::used);
        let used = used.fold(0, u64::saturating_add);
        (status.at().as_micros(), is_idle, used)
    }
}

/// Calls in an order that explains their results.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) model: Model,
    /// The task and the step of each call.
    calls: Vec<(usize, usize)>,
    /// The receipts that the store returned, by number of the call.
    receipts: BTreeMap<usize, Receipt>,
}

impl Order {
    pub(super) fn new(model: &Model) -> Self {
        Self {
            model: model.clone(),
            calls: Vec::new(),
            receipts: BTreeMap::new(),
        }
    }

    /// Returns the order with one more call at its end. `None` if the reference store returns another result there.
    pub(super) fn then(mut self, made: &Made) -> Option<Self> {
        let Some(got) = &made.got else {
            return Some(self);
        };
        let mut calls = made.calls.clone();
        for (step, call) in &mut calls {
            let of = (made.task, *step);
            if let Verb::Settle(issuer) | Verb::Renew(issuer) = &mut call.step.verb {
                let place = |of| self.calls.iter().position(|call| *call == of);
                *issuer = place((made.task, *issuer)).or_else(|| place((0, *issuer)))?;
            }
            let receipt = made.receipts.get(step).copied();
            *step = self.calls.len();
            self.receipts
                .extend(receipt.map(|receipt| (*step, receipt)));
            self.calls.push(of);
        }
        let agrees = self.model.compare(&calls, &self.receipts, got).is_ok();
        agrees.then_some(self)
    }

    fn held(&self) -> Vec<HeldEntry> {
        let mut held = Vec::new();
        for log in &self.model.logs {
            for entry in self.model.entries(*log) {
                let appended_by = self.model.appended_by(&entry);
                let flags = [entry.admitted, entry.refundable];
                let call = appended_by.map(|number| self.calls[number]);
                held.push((*log, entry.at, entry.cost, flags, call));
            }
        }
        held
    }
}

/// What a search has found out.
#[derive(Default)]
pub(super) struct Search {
    tries: usize,
    /// States from which no order continues: each task's number of remaining calls, and the entries of all logs.
    dead_ends: HashSet<(Vec<usize>, Vec<HeldEntry>)>,
}

/// Its log, time and cost, whether it was admitted and is refundable, and the call that appended it.
type HeldEntry = (LogId, Timestamp, u64, [bool; 2], Option<(usize, usize)>);

impl Search {
    /// Returns `true` if an order that begins like this one and ends with `end` explains all calls. Gives up after
    /// [`MAX_TRIES`], and then returns `true`.
    pub(super) fn explains(&mut self, order: &Order, tasks: &[&[Made]], end: &[Made]) -> bool {
        let next = tasks.iter().enumerate();
        let next = next.filter_map(|(task, calls)| Some((task, calls.first()?)));
        let mut next: Vec<(usize, &Made)> = next.collect();
        if next.is_empty() {
            return end.iter().try_fold(order.clone(), Order::then).is_some();
        }
        let remaining = || tasks.iter().map(|calls| calls.len()).collect();
        let state = || (remaining(), order.held());
        if !self.dead_ends.is_empty() && self.dead_ends.contains(&state()) {
            return false;
        }
        next.sort_by_key(|(_, made)| made.likely_place());
        for (task, made) in next {
            self.tries += 1;
            let Some(longer) = order.clone().then(made) else {
                continue;
            };
            let mut rest = tasks.to_vec();
            rest[task] = &rest[task][1..];
            if self.explains(&longer, &rest, end) || self.tries > MAX_TRIES {
                return true;
            }
            // Where a call without effect fits, no other place is better.
            if !made.may_have_changed() {
                break;
            }
        }
        self.dead_ends.insert(state());
        false
    }
}
