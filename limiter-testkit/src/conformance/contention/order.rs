//! A serial order of the calls of several tasks.

use std::collections::{BTreeMap, HashSet};

use limiter_core::{LimitStatus, Receipt, Timestamp};

use crate::conformance::sequence::call_result::CallResult;
use crate::conformance::sequence::case::Operation;
use crate::conformance::sequence::planner::Planner;
use crate::conformance::sequence::{Call, Log};
use crate::reference::ReferenceEntry;

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
    /// Returns `true` if the call may have changed its log, judging by its result.
    fn may_have_changed(&self) -> bool {
        match &self.got {
            CallResult::Decided(decided) => decided.answer.appended,
            CallResult::Settled(settled) => settled.applied,
            CallResult::Reset(removed) => *removed,
            _ => false,
        }
    }

    /// Returns the values that are likely to grow from one call to the next: the time, and the usage.
    fn likely_place(&self) -> (u64, bool, u64) {
        let status = match &self.got {
            CallResult::Decided(decided) => &decided.answer.status,
            CallResult::Settled(settled) => &settled.status,
            _ => return (u64::MAX, !self.may_have_changed(), 0),
        };
        let used = status
            .limits()
            .iter()
            .map(LimitStatus::used)
            .fold(0, u64::saturating_add);
        (status.at().as_micros(), !self.may_have_changed(), used)
    }
}

/// Calls in an order that explains their results.
#[derive(Clone)]
pub(super) struct Order {
    planner: Planner,
    /// The task and the step of each call.
    calls: Vec<(usize, usize)>,
    /// The receipts that the store returned, by number of the call.
    receipts: BTreeMap<usize, Receipt>,
}

impl Order {
    pub(super) fn new(planner: &Planner) -> Self {
        Self {
            planner: planner.clone(),
            calls: Vec::new(),
            receipts: BTreeMap::new(),
        }
    }

    /// Returns the order with one more call at its end. `None` if the reference store returns another result there.
    pub(super) fn then(self, made: &Made) -> Option<Self> {
        let (mut order, mut call) = (self, made.call);
        let number = order.calls.len();
        if let Operation::Settle { step, .. } = &mut call.operation {
            let issuers = [(made.of.0, *step), (0, *step)];
            *step = issuers
                .iter()
                .find_map(|issuer| order.calls.iter().position(|call| call == issuer))?;
        }
        order.calls.push(made.of);
        order
            .receipts
            .extend(made.receipt.map(|receipt| (number, receipt)));
        order
            .planner
            .compare(number, call, &order.receipts, &made.got)
            .is_ok()
            .then_some(order)
    }

    fn held(&self) -> Vec<HeldEntry> {
        let of_log = |log: Log| {
            self.planner
                .entries(log)
                .into_iter()
                .map(move |entry| (log, entry))
        };
        let entries = self.planner.logs.iter().flat_map(|log| of_log(*log));
        let call = |entry: &ReferenceEntry| {
            self.planner
                .appended_by(entry)
                .map(|number| self.calls[number])
        };
        entries
            .map(|(log, entry)| {
                (
                    log,
                    entry.at,
                    entry.cost,
                    entry.admitted,
                    entry.refundable,
                    call(&entry),
                )
            })
            .collect()
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
type HeldEntry = (Log, Timestamp, u64, bool, bool, Option<(usize, usize)>);

impl Search {
    /// Returns `true` if an order that begins like this one and ends with `end` explains all calls. Gives up after
    /// [`MAX_TRIES`], and then returns `true`.
    pub(super) fn explains(&mut self, order: &Order, tasks: &[&[Made]], end: &[Made]) -> bool {
        let next = tasks
            .iter()
            .enumerate()
            .filter_map(|(task, calls)| Some((task, calls.first()?)));
        let mut next: Vec<(usize, &Made)> = next.collect();
        if next.is_empty() {
            return end.iter().try_fold(order.clone(), Order::then).is_some();
        }
        let state = || {
            (
                tasks.iter().map(|calls| calls.len()).collect(),
                order.held(),
            )
        };
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
