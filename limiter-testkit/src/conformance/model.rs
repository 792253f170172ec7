//! Computes the expected results, call by call, from the reference store.
//!
//! A store may forget a log at a time that callers cannot observe, and a dropped call may take effect or not. Clones of a model are
//! the histories that are possible.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use limiter_core::store::{
    At, Change, EntryId, Facts, JointOp, LogKey, Mode, Op, Settlement, decide,
};
use limiter_core::{
    ErrorKind, Limit, MAX_COST, Name, Policy, Receipt, SyncStore, Timestamp, Window,
};

use super::case::{Case, CaseId, CaseLimiter, Place, Step, Verb};
use super::result::{CallResult, RawFacts};
use super::sentence::Sentence::{self, F1, F2};
use crate::reference::{ReferenceEntry, ReferenceStore};

/// The salt of the reference store's ids. Any value except 0: real runs have a random salt.
const SALT: u128 = 0x5a17 << 64 | 0x5a17;

/// A log, as the numbers of its limiter's name and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogId {
    pub(crate) name: u8,
    pub(crate) key: u8,
}

impl LogId {
    /// Returns the default name. It is the same in every run, because the process never frees a name.
    pub(crate) fn name(self) -> Name {
        match self.name {
            0 => Name::new("conformance"),
            name => Name::new(&format!("conformance:{name}")),
        }
    }
}

/// A step, with the meaning of its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) step: Step,
    pub(crate) log: LogId,
    /// The index of the policy.
    pub(crate) policy: usize,
    /// The index of the limiter's default policy, if there is a limiter.
    pub(crate) limiter_policy: Option<usize>,
    pub(crate) at: At,
    /// The time at which the call happened, by the caller or by the store's clock.
    pub(crate) time: Timestamp,
}

impl Call {
    /// Returns a call without a limiter.
    pub(crate) fn new(verb: Verb, log: LogId, policy: usize, at: At) -> Self {
        Self {
            step: Step::new(verb, 1),
            log,
            policy,
            limiter_policy: None,
            at,
            time: Timestamp::EPOCH,
        }
    }

    pub(crate) fn reset(log: LogId, at: At) -> Self {
        Self::new(Verb::Reset, log, 0, at)
    }

    /// Returns the call after it happened: when the caller said, or when the store's clock stated this time.
    pub(crate) fn happened(mut self, stated: Timestamp) -> Self {
        self.time = match self.at {
            At::Given(given) => given,
            At::StoreClock => stated,
        };
        self
    }

    /// Returns the operation of a call that is one of several. The reference's logs have one byte for a key.
    pub(crate) fn joint_op<'a>(
        &'a self,
        policies: &'a [Policy],
        salt: u128,
        entry: impl Fn(usize) -> Option<EntryId>,
    ) -> Option<JointOp<'a>> {
        let log = LogKey::new(self.log.name(), std::slice::from_ref(&self.log.key));
        self.joint_op_on(policies, log, salt, entry)
    }

    pub(crate) fn joint_op_on<'a>(
        &self,
        policies: &'a [Policy],
        log: LogKey<'a>,
        salt: u128,
        entry: impl Fn(usize) -> Option<EntryId>,
    ) -> Option<JointOp<'a>> {
        // A store receives what `Op::checked` returns.
        Some(JointOp {
            op: self.op(policies, log, salt, entry)?.checked().ok()?,
            is_advisory: self.step.joint.is_advisory,
            keeps_charge: self.step.joint.keeps_charge,
        })
    }

    /// Returns the operation of an acquire, a peek or a record. `entry` returns the id of the entry that a step returned.
    pub(crate) fn op<'a>(
        &self,
        policies: &'a [Policy],
        log: LogKey<'a>,
        salt: u128,
        entry: impl Fn(usize) -> Option<EntryId>,
    ) -> Option<Op<'a>> {
        let Verb::Run(mode) = self.step.verb else {
            return None;
        };
        let mut op = Op::new(mode, log.key, &policies[self.policy])
            .with_name(log.name)
            .with_cost(self.step.cost);
        (op.at, op.id) = (
            self.at,
            self.step.id.and_then(|id| id.entry_id(salt, entry)),
        );
        op.limiter_policy = self.limiter_policy.map(|policy| &policies[policy]);
        Some(op)
    }

    /// Returns the step whose receipt the call changes.
    pub(crate) fn issuer(&self) -> Option<usize> {
        match self.step.verb {
            Verb::Settle(issuer) | Verb::Renew(issuer) => Some(issuer),
            _ => None,
        }
    }

    /// Returns the settlement or the renewal of a receipt.
    pub(crate) fn settlement<'a>(
        &self,
        policies: &'a [Policy],
        log: LogKey<'a>,
        receipt: Receipt,
        salt: u128,
    ) -> Settlement<'a> {
        let policy = &policies[self.policy];
        let mut settlement = Settlement::new(log, policy, receipt, self.step.cost);
        settlement.at = self.at;
        settlement.limiter_policy = self.limiter_policy.map(|policy| &policies[policy]);
        if let Verb::Renew(_) = self.step.verb {
            let id = self.step.id.and_then(|id| id.entry_id(salt, |_| None));
            settlement.change = Change::Renew { id };
        }
        settlement
    }
}

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

/// A receipt from the reference store, with the log and the id of its entry.
#[derive(Clone, Debug)]
struct Issued {
    log: LogId,
    id: Option<EntryId>,
    receipt: Receipt,
    /// Whether the entry was renewed at the receipt's time. By S9, the receipt may then still name it.
    is_stale: bool,
}

/// The calls on a store so far, and what the store should hold after them.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    reference: ReferenceStore,
    /// The case's policies, followed by a policy that covers every entry.
    pub(crate) policies: Arc<[Policy]>,
    limiters: Vec<CaseLimiter>,
    pub(crate) start: Timestamp,
    pub(crate) calls: Vec<Arc<Planned>>,
    /// The receipts, by the steps that returned them.
    issued: BTreeMap<usize, Issued>,
    /// The logs that the calls so far use.
    pub(crate) logs: Vec<LogId>,
    /// How long each log is kept after its newest entry. `None` if its last append was at a given time.
    kept: HashMap<LogId, Option<Window>>,
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
            policies: policies.into(),
            limiters: case.limiters.clone(),
            start: Timestamp::from_micros_saturating(case.start),
            calls: Vec::new(),
            issued: BTreeMap::new(),
            logs: Vec::new(),
            kept: HashMap::new(),
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
        let mut issued = self.issued.iter();
        let found = issued.find(|(_, issued)| issued.receipt.entry() == entry.id);
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
            log = step.on.map_or(issued.log, |_| log);
            // A store may use an idempotency key as the entry id. The receipt then also matches another entry with that id and
            // time, which S1 and L13 leave open.
            // A renewal with an id finds it at any later time.
            let is_namesake = |entry: &ReferenceEntry| {
                entry.callers_id.is_some()
                    && entry.callers_id == issued.id
                    && (entry.at == issued.receipt.at() || step.id.is_some())
                    && entry.id != issued.receipt.entry()
            };
            if self.entries(log).iter().any(is_namesake) {
                return None;
            }
            // Only the id of the entry repeats a renewal.
            if issued.is_stale && step.id.is_none() {
                return None;
            }
            if step
                .id
                .is_some_and(|id| id.entry_id(SALT, |_| None) != issued.id)
            {
                return None;
            }
        }
        let runs = matches!(step.verb, Verb::Run(_) | Verb::Renew(_));
        let default = limiter(place).policy.filter(|_| runs).map(policy);
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
            let own = |step| self.issued.get(&step).map(|issued| issued.receipt);
            let expected = result.with_original(|| self.original(*step, call, own));
            let theirs = |step| receipts.get(&step).copied();
            let got = got
                .clone()
                .with_original(|| self.original(*step, call, theirs));
            let is_joint = calls.len() > 1;
            let agrees = expected.comparable(&got, is_joint.then_some(call.step.verb)) == got;
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
        receipt: impl Fn(usize) -> Option<Receipt>,
    ) -> Option<usize> {
        // By L13, an entry whose caller chose the store's id of another entry may share that id.
        if let Some(CaseId::EntryOf(_)) = call.step.id {
            return None;
        }
        // By L9, an append takes its id from an older entry, and the store may have used that id for both.
        let entry = |step: usize| {
            receipt(step).map(|receipt| (receipt.entry(), call.step.id.map(|_| receipt.at())))
        };
        let own = entry(step)?;
        let is_it = |(other, issued): &(&usize, &Issued)| {
            let holds = |entry: &ReferenceEntry| entry.id == issued.receipt.entry();
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
        if let [number] = numbers {
            return vec![self.apply_alone(*number)];
        }
        let calls: Vec<(usize, Call)> = numbers
            .iter()
            .map(|number| (self.calls[*number].step, self.calls[*number].call))
            .collect();
        let policies = Arc::clone(&self.policies);
        let entry = |step| self.entry_of(step);
        let ops = calls
            .iter()
            .filter_map(|(_, call)| call.joint_op(&policies, SALT, entry));
        let ops: Vec<JointOp<'_>> = ops.collect();
        self.reference.stop_clock(calls[0].1.time);
        let facts = self.reference.apply_all_now(&ops);
        let noted = calls.iter().zip(&ops).zip(facts);
        let noted = noted.map(|(((step, call), joint), facts)| {
            self.noted(*step, call, &joint.answered_by(&facts), facts)
        });
        noted.collect()
    }

    fn entry_of(&self, step: usize) -> Option<EntryId> {
        let issued = self.issued.get(&step);
        issued.map(|issued| issued.receipt.entry())
    }

    /// Returns the calls of some steps that can be made as one, each with its step.
    pub(crate) fn joint_calls(
        &self,
        case: &Case,
        steps: std::ops::Range<usize>,
        at: At,
    ) -> Vec<(usize, Call)> {
        let mut calls: Vec<(usize, Call)> = Vec::new();
        for number in steps {
            let Some(call) = self.call(case.steps[number], at) else {
                continue;
            };
            let entry = |step| self.entry_of(step);
            let joint = call.joint_op(&self.policies, SALT, entry);
            let is_new = calls.iter().all(|(_, other)| other.log != call.log);
            if is_new && joint.is_some() {
                calls.push((number, call));
            }
        }
        calls
    }

    /// Applies a call to the reference store.
    fn apply_alone(&mut self, number: usize) -> CallResult {
        let Planned { call, step, .. } = *self.calls[number];
        let policies = Arc::clone(&self.policies);
        let key = [call.log.key];
        let log = LogKey::new(call.log.name(), &key);
        let entry = |step| self.entry_of(step);
        self.reference.stop_clock(call.time);
        if let Some(op) = call.op(&policies, log, SALT, entry) {
            return match op.checked() {
                Ok(op) => {
                    let facts = self.reference.apply_now(&op);
                    self.noted(step, &call, &op, facts)
                }
                Err(error) => CallResult::Failed(error.kind(), String::new()),
            };
        }
        let Some(issuer) = call.issuer() else {
            return CallResult::Reset {
                there_was_a_log: self.reference.reset_now(log),
            };
        };
        let Some(issued) = self.issued.get(&issuer).cloned() else {
            return CallResult::Failed(ErrorKind::Inconsistent, String::new());
        };
        let settlement = call.settlement(&policies, log, issued.receipt, SALT);
        let facts = self.reference.settle_now(&settlement);
        let renewed = limiter_core::Settled::new(&settlement, facts.clone()).receipt();
        if let (Verb::Renew(_), Some(receipt)) = (call.step.verb, renewed) {
            self.keep(&call, &settlement.to_record(1));
            let name = |receipt: Receipt| (receipt.entry(), receipt.at());
            let is_old = |other: &&mut Issued| {
                other.log == issued.log && name(other.receipt) == name(receipt)
            };
            for issued in self.issued.values_mut().filter(is_old) {
                issued.is_stale = true;
            }
            let issued = Issued {
                receipt,
                is_stale: false,
                ..issued
            };
            self.issued.insert(step, issued);
        }
        CallResult::settled(&settlement, facts)
    }

    /// Notes how long the log is kept after an append by this operation.
    fn keep(&mut self, call: &Call, op: &Op<'_>) {
        let window = Some(op.retention().window).filter(|_| call.at == At::StoreClock);
        self.kept.insert(call.log, window);
    }

    /// Notes what an operation changed, and decides.
    fn noted(&mut self, step: usize, call: &Call, op: &Op<'_>, facts: Facts) -> CallResult {
        let raw_facts = RawFacts::from(&facts);
        if raw_facts.outcome == RawFacts::APPENDED {
            self.keep(call, op);
        }
        let decision = decide(op, facts);
        if let Some(receipt) = decision.receipt() {
            let log = call.log;
            let id = op.id;
            let issued = Issued {
                log,
                id,
                receipt,
                is_stale: false,
            };
            self.issued.insert(step, issued);
        }
        CallResult::decided(&decision, Some(raw_facts))
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
