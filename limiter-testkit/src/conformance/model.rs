//! Computes the expected results, call by call, from the reference store.
//!
//! A store may forget a log at a time that callers cannot observe, and a dropped call may take effect or not. Clones of a model are
//! the histories that are possible.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt as _;
use limiter_core::store::{At, EntryId, LogKey, Mode};
use limiter_core::{
    ErrorKind, Limit, MAX_COST, Policy, Receipt, SyncStore as _, Timestamp, Window,
};

use super::call::{Call, LogId};
use super::caller::{Caller, Route, StoreKeys};
use super::result::{CallResult, Failed};
use crate::case::{Case, CaseId, CaseLimiter, Place, Step, Verb};
use crate::reference::{ReferenceEntry, ReferenceStore};
use crate::sentence::Sentence::{self, F1, F2};

/// The salt of the reference store's ids. Any value except 0: real runs have a random salt.
const SALT: u128 = 0x5a17 << 64 | 0x5a17;

/// A wrong result: the number of the call, and the result.
pub(crate) type Wrong = (usize, CallResult);

/// A call and its expected result.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) call: Call,
    pub(crate) expected: CallResult,
    /// The step of the case that the call belongs to. Calls after the end belong to the last step.
    pub(crate) step: usize,
}

/// What a receipt of the reference store names.
#[derive(Clone, Copy, Debug)]
struct Issued {
    log: LogId,
    id: Option<EntryId>,
    /// Whether the entry was renewed at the receipt's time. By S9, the receipt may then still name it.
    is_stale: bool,
}

/// The calls on a store so far, and what the store should hold after them.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    reference: ReferenceStore,
    /// Calls the reference store, and keeps its receipts.
    caller: Caller,
    /// The case's policies, followed by a policy that covers every entry.
    pub(crate) policies: Arc<[Policy]>,
    limiters: Vec<CaseLimiter>,
    pub(crate) start: Timestamp,
    pub(crate) calls: Vec<Arc<Planned>>,
    /// What the receipts name, by the steps that returned them.
    issued: BTreeMap<usize, Issued>,
    /// The logs that the calls so far use.
    pub(crate) logs: Vec<LogId>,
    /// How long each log is kept after its newest entry. `None` if its last append was at a given time.
    kept: HashMap<LogId, Option<Window>>,
    /// A log that the store cannot read.
    pub(crate) damaged: Option<LogId>,
    /// The numbers of the dropped calls that have not taken effect. Several are one call.
    dropped: Vec<usize>,
}

impl Model {
    pub(crate) fn new(case: &Case) -> Self {
        const MOST: Limit = match Limit::with_window(MAX_COST, Window::MAX) {
            Ok(limit) => limit,
            Err(_) => unreachable!(),
        };
        let mut policies = case.policies.clone();
        policies.push(Policy::from(MOST));
        Self {
            reference: ReferenceStore::new(),
            caller: Caller::new(StoreKeys::default(), SALT),
            policies: policies.into(),
            limiters: case.limiters.clone(),
            start: Timestamp::from_micros_saturating(case.start),
            calls: Vec::new(),
            issued: BTreeMap::new(),
            logs: Vec::new(),
            kept: HashMap::new(),
            damaged: None,
            dropped: Vec::new(),
        }
    }

    /// Returns the step of the last call.
    pub(crate) fn last_step(&self) -> usize {
        self.calls.last().map_or(0, |planned| planned.step)
    }

    /// Returns the time of a log's newest entry.
    pub(crate) fn newest(&self, log: LogId) -> Option<Timestamp> {
        self.entries(log).last().map(|entry| entry.at)
    }

    pub(crate) fn entries(&self, log: LogId) -> Vec<ReferenceEntry> {
        self.reference.entries(LogKey::new(log.name(), &[log.key]))
    }

    /// Returns the first step that returned a receipt of an entry.
    pub(crate) fn appended_by(&self, entry: &ReferenceEntry) -> Option<usize> {
        let mut receipts = self.caller.receipts.iter();
        let found = receipts.find(|(_, receipt)| receipt.entry() == entry.id);
        found.map(|(step, _)| *step)
    }

    /// Returns the call of a step. Returns `None` if the contract does not specify its result, or if there is no receipt to settle.
    pub(crate) fn call(&self, step: Step, at: At) -> Option<Call> {
        let limiter = |place: Place| {
            let number = usize::from(place.limiter) % self.limiters.len().max(1);
            self.limiters.get(number).copied().unwrap_or_default()
        };
        // Of the case, without the added one.
        let policy = |number: u8| usize::from(number) % (self.policies.len() - 1).max(1);
        let place = step.on.unwrap_or_default();
        let mut log = LogId {
            name: limiter(place).name,
            key: place.key,
        };
        if let Some(CaseId::EntryOf(step)) = step.id {
            self.issued.get(&step)?;
        }
        if let Verb::Settle(issuer) | Verb::Renew(issuer) = step.verb {
            let issued = self.issued.get(&issuer)?;
            let receipt = self.caller.receipts.get(&issuer)?;
            log = step.on.map_or(issued.log, |_| log);
            // A store may use an idempotency key as the entry id. The receipt then also matches another entry with that id and
            // time, which S1 and L13 leave open.
            // By S9, a renewal with an id finds it if a renewal has moved it.
            let is_namesake = |entry: &ReferenceEntry| {
                entry.callers_id.is_some()
                    && entry.callers_id == issued.id
                    && entry.at == receipt.at()
                    && (step.id.is_none() || !entry.is_renewed)
                    && entry.id != receipt.entry()
            };
            if self.entries(log).iter().any(is_namesake) {
                return None;
            }
            // Only the id of the entry repeats a renewal.
            if issued.is_stale && step.id.is_none() {
                return None;
            }
        }
        let runs = matches!(step.verb, Verb::Run(_) | Verb::Renew(_));
        let default = limiter(place).policy.filter(|_| runs).map(policy);
        if let Verb::Renew(_) = step.verb {
            let policies = [Some(policy(step.policy)), default].into_iter().flatten();
            let mut limits = policies.flat_map(|policy| self.policies[policy].limits());
            // No front end renews what has no receipt.
            if limits.all(|limit| limit.resolution().is_some()) {
                return None;
            }
        }
        Some(Call {
            step,
            limiter_policy: default,
            ..Call::new(step.verb, log, policy(step.policy), at)
        })
    }

    /// Returns a peek that covers every entry of a log.
    pub(crate) fn peek_all(&self, log: LogId, at: At) -> Call {
        Call::new(Verb::Run(Mode::Peek), log, self.policies.len() - 1, at)
    }

    /// Adds a call that does not take effect. Returns its number.
    fn add(&mut self, step: usize, call: Call) -> usize {
        if self.calls.is_empty() {
            self.start = call.time;
        }
        if !self.logs.contains(&call.log) {
            self.logs.push(call.log);
        }
        self.calls.push(Arc::new(Planned {
            call,
            expected: CallResult::Dropped,
            step,
        }));
        self.calls.len() - 1
    }

    /// Adds a call, or several that are one, each with its step. Compares the store's results with the expected ones. `receipts` are
    /// the store's receipts, by step.
    ///
    /// # Errors
    /// Returns the first wrong result.
    pub(crate) fn compare(
        &mut self,
        calls: &[(usize, Call)],
        receipts: &BTreeMap<usize, Receipt>,
        got: &[CallResult],
    ) -> Result<(), Wrong> {
        let numbers: Vec<usize> = calls
            .iter()
            .map(|(step, call)| self.add(*step, *call))
            .collect();
        let mut wrong = None;
        let results = self.apply(&numbers);
        for (((number, result), (step, call)), got) in
            numbers.iter().zip(results).zip(calls).zip(got)
        {
            let own = &self.caller.receipts;
            let expected = result.with_original(|| self.original(*step, call, own));
            let got = got.clone();
            let got = got.with_original(|| self.original(*step, call, receipts));
            let is_joint = calls.len() > 1;
            let agrees = expected.comparable(&got, is_joint.then_some(call.step.verb)) == got;
            if expected.has_receipt() && !got.has_receipt() {
                // Later steps cannot settle what the store has no receipt for.
                self.issued.remove(step);
                self.caller.receipts.remove(step);
            }
            Arc::make_mut(&mut self.calls[*number]).expected = expected;
            if !agrees {
                wrong = wrong.or(Some((*number, got)));
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    /// Adds calls that the store could not make as one.
    pub(crate) fn add_refused(&mut self, calls: &[(usize, Call)]) {
        for (step, call) in calls {
            let number = self.add(*step, *call);
            Arc::make_mut(&mut self.calls[number]).expected = CallResult::NotTogether;
        }
    }

    /// Returns the step whose entry a step's receipt names, if it is another one.
    fn original(
        &self,
        step: usize,
        call: &Call,
        receipts: &BTreeMap<usize, Receipt>,
    ) -> Option<usize> {
        // By L13, an entry whose caller chose the store's id of another entry may share that id.
        if let Some(CaseId::EntryOf(_)) = call.step.id {
            return None;
        }
        // By L9, an append takes its id from an older entry, and the store may have used that id for both.
        let entry = |step| {
            let receipt = receipts.get(&step)?;
            Some((receipt.entry(), call.step.id.map(|_| receipt.at())))
        };
        let own = entry(step)?;
        let is_it = |(other, issued): &(&usize, &Issued)| {
            let receipt = self.caller.receipts.get(other);
            let holds = |held: &ReferenceEntry| receipt.is_some_and(|it| it.entry() == held.id);
            **other != step
                && !issued.is_stale
                && issued.log == call.log
                && entry(**other) == Some(own)
                && self.entries(issued.log).iter().any(holds)
        };
        self.issued.iter().find(is_it).map(|(step, _)| *step)
    }

    /// Applies calls to the reference store, several as one.
    fn apply(&mut self, numbers: &[usize]) -> Vec<CallResult> {
        let planned = numbers.iter().map(|number| &self.calls[*number]);
        let calls: Vec<_> = planned
            .map(|planned| (planned.step, planned.call))
            .collect();
        if let Some(at) = calls
            .iter()
            .position(|(_, call)| self.damaged == Some(call.log))
        {
            let corrupt = CallResult::Failed(Failed {
                kind: ErrorKind::Corrupt,
                log: self.damaged,
                text: String::new(),
            });
            let step = calls[at].1.step;
            if step.verb == Verb::Reset {
                self.damaged = None;
            } else if numbers.len() == 1 || !step.joint.is_advisory {
                return vec![corrupt; numbers.len()];
            } else {
                let others = [&numbers[..at], &numbers[at + 1..]].concat();
                let mut results = self.apply(&others);
                results.insert(at, corrupt);
                return results;
            }
        }
        self.reference.stop_clock(calls[0].1.time);
        let caller = &mut self.caller;
        let made = caller.call(&self.reference, &self.policies, &calls, Route::Facts);
        // The reference store never waits, and applies any operations as one.
        let results = made.now_or_never().flatten();
        let results = results.unwrap_or_else(|| vec![CallResult::NotTogether; calls.len()]);
        for ((step, call), result) in calls.iter().zip(&results) {
            self.note(*step, call, result);
        }
        results
    }

    /// Notes what a call changed in the reference store.
    fn note(&mut self, step: usize, call: &Call, result: &CallResult) {
        let (issued, appends) = match (call.step.verb, result) {
            (Verb::Renew(issuer), CallResult::Settled(settled)) => {
                let issued = self.issued.get(&issuer);
                let issued = issued.filter(|_| settled.applied);
                let issued = issued.map(|issued| (issued.log, issued.id));
                (issued, settled.applied)
            }
            (Verb::Run(_), CallResult::Decided(decided)) => {
                let id = call.step.id.and_then(|id| self.caller.id(id));
                let issued = decided.values.receipt.map(|_| (call.log, id));
                (issued, decided.values.appended && !decided.is_repeated())
            }
            _ => return,
        };
        if appends {
            let policies = [Some(call.policy), call.limiter_policy];
            let windows = policies.into_iter().flatten();
            let window = windows.map(|policy| self.policies[policy].longest_window());
            let window = window.max().filter(|_| call.at == At::StoreClock);
            self.kept.insert(call.log, window);
        }
        let receipts = &self.caller.receipts;
        if let (Some((log, id)), Some(new)) = (issued, receipts.get(&step)) {
            let is_new = |other: &usize| {
                let old = receipts.get(other);
                old.is_some_and(|old| (old.entry(), old.at()) == (new.entry(), new.at()))
            };
            if let Verb::Renew(_) = call.step.verb {
                let others = self
                    .issued
                    .iter_mut()
                    .filter(|(_, issued)| issued.log == log);
                others
                    .filter(|(other, _)| is_new(other))
                    .for_each(|(_, issued)| issued.is_stale = true);
            }
            let is_stale = false;
            self.issued.insert(step, Issued { log, id, is_stale });
        }
    }

    /// Returns the calls of some steps that are one call, each with its step. Those that do not suit others are left out.
    pub(crate) fn calls_of(
        &self,
        case: &Case,
        steps: std::ops::Range<usize>,
        at: At,
    ) -> Vec<(usize, Call)> {
        let is_alone = steps.len() == 1;
        let mut calls: Vec<(usize, Call)> = Vec::new();
        for number in steps {
            let Some(call) = self.call(case.steps[number], at) else {
                continue;
            };
            let op = self.caller.op(&self.policies, &call);
            let is_new = calls.iter().all(|(_, other)| other.log != call.log);
            if is_alone || is_new && op.is_some_and(|op| op.checked().is_ok()) {
                calls.push((number, call));
            }
        }
        calls
    }

    /// Adds a call that was dropped, or several that are one. It has not taken effect yet.
    pub(crate) fn drop_calls(&mut self, calls: &[(usize, Call)]) {
        let added = calls.iter().map(|(step, call)| self.add(*step, *call));
        self.dropped = added.collect();
    }

    /// Returns the same history after the dropped call took effect. At the store's clock, it appended the entry at `newest`. Its
    /// receipt is lost.
    pub(crate) fn with_dropped_call(&self, newest: Option<Timestamp>) -> Option<Self> {
        let mut other = self.clone();
        let numbers = std::mem::take(&mut other.dropped);
        let mut steps = Vec::new();
        for number in &numbers {
            let planned = Arc::make_mut(&mut other.calls[*number]);
            planned.call = planned.call.happened(newest.unwrap_or(planned.call.time));
            steps.push(planned.step);
        }
        if numbers.is_empty() {
            return None;
        }
        _ = other.apply(&numbers);
        for step in &steps {
            other.issued.remove(step);
            other.caller.receipts.remove(step);
        }
        Some(other)
    }

    /// Returns the same history with the log forgotten. `None` if there is no log.
    pub(crate) fn forgotten(&self, log: LogId) -> Option<Self> {
        self.newest(log)?;
        let other = self.clone();
        _ = other
            .reference
            .reset_now(LogKey::new(log.name(), &[log.key]));
        Some(other)
    }

    /// Returns `true` if the store may have forgotten a log by `now`. It must keep entries at given times for a minute, which is
    /// longer than a session lasts by default.
    pub(crate) fn may_forget(&self, log: LogId, now: Timestamp) -> bool {
        match (self.newest(log), self.kept.get(&log)) {
            (Some(newest), Some(Some(window))) => !window.counts(newest, now),
            _ => false,
        }
    }

    /// Returns the sentence that a store breaks if it has forgotten the log by now.
    pub(crate) fn keeps(&self, log: LogId) -> Sentence {
        if self.kept.get(&log) == Some(&None) {
            F2
        } else {
            F1
        }
    }
}
