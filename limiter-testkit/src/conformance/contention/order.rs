//! A serial order of the calls of several tasks.

use std::collections::{BTreeMap, HashSet};

use limiter_core::{LimitStatus, Receipt, Timestamp};

use crate::conformance::case::Verb;
use crate::conformance::model::{Call, LogId, Model};
use crate::conformance::result::CallResult;

/// The number of calls that one search tries. A search that succeeds tries little more calls than there are.
const MAX_TRIES: usize = 5_000;

/// A call that a task made.
pub(super) struct Made {
    /// The task and the step.
    pub(super) of: (usize, usize),
    /// A settlement refers to the step whose receipt it uses.
    pub(super) call: Call,
    pub(super) got: CallResult,
    /// The receipt that the call returned.
    pub(super) receipt: Option<Receipt>,
}

impl Made {
    /// Returns the values that are likely to grow from one call to the next: the time, and the usage.
    fn likely_place(&self) -> (u64, bool, u64) {
        let is_idle = !self.got.may_have_changed();
        let Some(status) = self.got.status() else {
            return (u64::MAX, is_idle, 0);
        };
        let limits = status.limits();
        let used = limits
            .iter()
            .map(LimitStatus::used)
            .fold(0, u64::saturating_add);
        (status.at().as_micros(), is_idle, used)
    }
}

/// Calls in an order that explains their results.
#[derive(Clone)]
pub(super) struct Order {
    model: Model,
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
        let mut call = made.call;
        let number = self.calls.len();
        if let Verb::Settle(step) | Verb::Renew(step) = &mut call.step.verb {
            let place = |issuer| self.calls.iter().position(|call| *call == issuer);
            *step = place((made.of.0, *step)).or_else(|| place((0, *step)))?;
        }
        self.calls.push(made.of);
        self.receipts
            .extend(made.receipt.map(|receipt| (number, receipt)));
        let Self {
            model, receipts, ..
        } = &mut self;
        let got = std::slice::from_ref(&made.got);
        let agrees = model.compare(&[(number, call)], receipts, got).is_ok();
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
            if !made.got.may_have_changed() {
                break;
            }
        }
        self.dead_ends.insert(state());
        false
    }
}
