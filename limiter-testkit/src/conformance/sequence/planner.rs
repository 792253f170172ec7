//! Computes the expected results, call by call.

use std::collections::HashMap;
use std::sync::Arc;

use limiter_core::store::{LogKey, Mode, Op, Outcome, Settlement, decide};
use limiter_core::{EntryId, ErrorKind, MAX_COST, Receipt, SyncStore, Timestamp};

use super::call_result::{CallResult, Decided, RawFacts, Settled};
use super::case::{Case, CaseId, CaseLimiter, Operation, Place};
use super::{Call, Log, Plan, Planned, everything};
use crate::answer::{Answer, StatusAnswer};
use crate::reference::{ReferenceEntry, ReferenceStore};

/// The salt of the reference store's ids. Any value except 0: real runs have a random salt.
const SALT: u128 = 0x5a17 << 64 | 0x5a17;

#[derive(Clone, Debug)]
pub(crate) struct Planner {
    reference: ReferenceStore,
    pub(crate) plan: Plan,
    limiters: Vec<CaseLimiter>,
    /// The receipts, by the steps that returned them.
    issued: HashMap<usize, Issued>,
    /// The steps that appended the reference store's entries.
    appended: HashMap<EntryId, usize>,
    /// The logs that the calls so far use.
    pub(crate) logs: Vec<Log>,
}

/// A receipt from the reference store, with the log and the id of its entry.
#[derive(Clone, Debug)]
struct Issued {
    log: Log,
    id: Option<EntryId>,
    receipt: Receipt,
}

impl Plan {
    /// Computes the expected results twice: from the reference store's facts with [`decide`](limiter_core::store::decide), and
    /// from the definitions.
    ///
    /// Every plan ends with peeks at each log, with every policy and at all entries, and with a reset.
    ///
    /// # Errors
    /// If the two computations differ, or if the case has no policy or no limiter.
    pub fn of(case: &Case) -> Result<Self, String> {
        Self::build(case, false)
    }

    /// Like [`of`](Self::of), but peeks at all entries of the log after every step.
    pub(crate) fn with_peeks(case: &Case) -> Result<Self, String> {
        Self::build(case, true)
    }

    fn build(case: &Case, with_peeks: bool) -> Result<Self, String> {
        let mut planner = Planner::new(case)?;
        let mut now = case.start;
        for (number, step) in case.steps.iter().enumerate() {
            now = now.saturating_add_signed(step.after).min(Timestamp::MAX.as_micros());
            let at = Timestamp::from_micros_saturating(now);
            let Some(call) = planner.call(step.operation, at) else { continue };
            planner.expect(number, call)?;
            let is_peek = matches!(step.operation, Operation::Run { mode: Mode::Peek, .. });
            if with_peeks && !is_peek {
                planner.expect(number, planner.peek_all(call.log, at))?;
            }
        }
        planner.finish(Timestamp::from_micros_saturating(now))
    }
}

impl Planner {
    pub(crate) fn new(case: &Case) -> Result<Self, String> {
        if case.policies.is_empty() || case.limiters.is_empty() {
            return Err("a case needs a policy and a limiter".to_owned());
        }
        let mut policies = case.policies.clone();
        policies.push(everything());
        let plan =
            Plan { policies: policies.into(), start: Timestamp::from_micros_saturating(case.start), calls: Vec::new() };
        Ok(Self {
            reference: ReferenceStore::new(),
            plan,
            limiters: case.limiters.clone(),
            issued: HashMap::new(),
            appended: HashMap::new(),
            logs: Vec::new(),
        })
    }

    /// Sets the time of a call that has not been applied yet.
    pub(crate) fn set_time(&mut self, number: usize, time: Timestamp) {
        Arc::make_mut(&mut self.plan.calls[number]).call.at = time;
    }

    fn limiter(&self, place: Place) -> CaseLimiter {
        self.limiters[usize::from(place.limiter) % self.limiters.len()]
    }

    fn log(&self, place: Place) -> Log {
        Log { name: self.limiter(place).name, key: place.key }
    }

    /// Returns the index of a policy of the case, which excludes the added one.
    fn policy(&self, number: u8) -> usize {
        usize::from(number) % (self.plan.policies.len() - 1)
    }

    /// Returns the time of a log's newest entry.
    pub(crate) fn newest(&self, log: Log) -> Option<Timestamp> {
        self.entries(log).last().map(|entry| entry.at)
    }

    /// Returns the entries of a log.
    pub(crate) fn entries(&self, log: Log) -> Vec<ReferenceEntry> {
        self.reference.entries(LogKey::new(log.name(), &[log.key]))
    }

    /// Returns the step that appended an entry.
    pub(crate) fn appended_by(&self, entry: &ReferenceEntry) -> Option<usize> {
        self.appended.get(&entry.name).copied()
    }

    /// Returns the call of a step. Returns `None` if the contract does not specify its result, or if there is no receipt to
    /// settle.
    pub(crate) fn call(&self, operation: Operation, at: Timestamp) -> Option<Call> {
        let (log, limiter_policy, policy) = match operation {
            Operation::Run { id: Some(CaseId::EntryOf(step)), .. } if !self.issued.contains_key(&step) => return None,
            Operation::Run { on, policy, .. } => (self.log(on), self.limiter(on).policy, policy),
            Operation::Settle { step, on, policy, .. } => {
                let issued = self.issued.get(&step)?;
                let log = on.map_or(issued.log, |place| self.log(place));
                // A store may use an idempotency key as the entry id. The receipt then also matches another entry
                // with that id and time, which S1 and L13 leave open.
                let is_namesake = |entry: &ReferenceEntry| {
                    entry.id.is_some()
                        && entry.id == issued.id
                        && entry.at == issued.receipt.at()
                        && entry.name != issued.receipt.entry()
                };
                if self.entries(log).iter().any(is_namesake) {
                    return None;
                }
                (log, None, policy)
            }
            Operation::Reset { on } => (self.log(on), None, 0),
        };
        let limiter_policy = limiter_policy.map(|policy| self.policy(policy));
        Some(Call { operation, log, policy: self.policy(policy), limiter_policy, at })
    }

    /// Returns a peek that covers every entry of a log.
    pub(crate) fn peek_all(&self, log: Log, at: Timestamp) -> Call {
        Call::peek(log, self.plan.policies.len() - 1, at)
    }

    /// Adds a call with its expected result to the plan.
    ///
    /// # Errors
    /// If the result by definition differs from the reference store's.
    pub(crate) fn expect(&mut self, step: usize, call: Call) -> Result<&Planned, String> {
        let number = self.skip(step, call);
        let expected = self.apply(number)?;
        let entries = self.entries(call.log);
        let planned = Arc::make_mut(&mut self.plan.calls[number]);
        planned.expected = expected;
        planned.held = entries.iter().filter_map(|entry| self.appended.get(&entry.name).copied()).collect();
        Ok(planned)
    }

    /// Adds a call whose future is dropped, without effect. Returns its number.
    pub(crate) fn skip(&mut self, step: usize, call: Call) -> usize {
        if !self.logs.contains(&call.log) {
            self.logs.push(call.log);
        }
        self.plan.calls.push(Arc::new(Planned { call, expected: CallResult::Dropped, step, held: Vec::new() }));
        self.plan.calls.len() - 1
    }

    /// Applies a planned call to the reference store's log.
    ///
    /// # Errors
    /// As [`expect`](Self::expect).
    pub(crate) fn apply(&mut self, number: usize) -> Result<CallResult, String> {
        let Planned { call, step, .. } = *self.plan.calls[number];
        let (policies, key) = (Arc::clone(&self.plan.policies), [call.log.key]);
        let log = LogKey::new(call.log.name(), &key);
        let entry = |step| self.issued.get(&step).map(|issued| issued.receipt.entry());
        match (call.op(&policies, log, SALT, entry), call.operation) {
            (Some(op), _) => self.run(step, call.log, op),
            (None, Operation::Settle { step, cost, .. }) => {
                let issued = self.issued.get(&step).ok_or(format!("step {step} returned no receipt"))?;
                self.settle(&Settlement::new(log, &policies[call.policy], issued.receipt, cost).at(call.at))
            }
            (None, _) => Ok(CallResult::Reset(self.reference.reset_now(log))),
        }
    }

    /// Forgets a log, as a store may do.
    pub(crate) fn forget(&mut self, log: Log) {
        _ = self.reference.reset_now(LogKey::new(log.name(), &[log.key]));
    }

    /// Ends the plan with peeks at each log and a reset.
    pub(crate) fn finish(mut self, at: Timestamp) -> Result<Plan, String> {
        let last = self.plan.calls.last().map_or(0, |planned| planned.step);
        for log in self.logs.clone() {
            for policy in 0..self.plan.policies.len() {
                self.expect(last, Call::peek(log, policy, at))?;
            }
            self.expect(last, Call::reset(log, at))?;
        }
        Ok(self.plan)
    }

    fn run(&mut self, step: usize, log: Log, mut op: Op<'_>) -> Result<CallResult, String> {
        let refused = match op.mode {
            _ if op.cost == 0 => Some(ErrorKind::InvalidCost),
            Mode::Record => None,
            _ => op.policy.limits().iter().any(|limit| op.cost > limit.max()).then_some(ErrorKind::CostExceedsLimit),
        };
        if let Some(kind) = refused {
            return Ok(CallResult::Refused(kind));
        }
        op.cost = op.cost.min(MAX_COST);
        op.id = op.id.filter(|_| op.mode != Mode::Peek);
        op.keep &= op.mode != Mode::Peek;
        let facts = self.reference.apply_now(&op);
        facts.verify(&op).map_err(|e| format!("the reference contradicts itself: {e}"))?;

        let entries = self.entries(log);
        let (entry, repeats) = match facts.outcome {
            Outcome::Nothing => (None, None),
            Outcome::Appended(entry) => {
                self.appended.insert(entry.id, step);
                (Some(entry), None)
            }
            Outcome::Repeated(entry) => {
                // The receipt of a dropped call is lost.
                let is_lost = |of: &Arc<Planned>, step| of.step == step && of.expected == CallResult::Dropped;
                let is_known = |step: &usize| !self.plan.calls.iter().any(|planned| is_lost(planned, *step));
                (Some(entry), self.appended.get(&entry.id).copied().filter(is_known))
            }
        };
        let raw_facts = Some(RawFacts::from(&facts));
        let entry = entry.map(|entry| (entry.at, facts.refundable));
        let answer = Answer::by_definition(&op, &entries, facts.log.now, facts.admitted, entry);
        let decision = decide(&op, facts);
        let decided = Answer::from(&decision);
        if decided != answer {
            return Err(format!("{op:?} on {entries:?}\nby definition {answer:?}\nbut decided   {decided:?}"));
        }
        // An entry is known by its receipt.
        let repeats = repeats.filter(|_| decision.receipt().is_some());
        if let Some(receipt) = decision.receipt() {
            self.issued.insert(step, Issued { log, id: op.id, receipt });
        }
        Ok(CallResult::Decided(Box::new(Decided { answer, repeats, raw_facts })))
    }

    fn settle(&mut self, settlement: &Settlement<'_>) -> Result<CallResult, String> {
        let facts = self.reference.settle_now(settlement);
        facts.verify(settlement).map_err(|e| format!("the reference contradicts itself: {e}"))?;
        let newest = facts.log.newest;
        let settled = limiter_core::Settled::new(settlement, facts);
        let entries = self.reference.entries(settlement.log);
        let answer = StatusAnswer::by_definition(settlement.policy, &entries, settled.status().at());
        let status = StatusAnswer::from(settled.status());
        if status != answer {
            return Err(format!("{settlement:?} on {entries:?}\nby definition {answer:?}\nbut settled   {status:?}"));
        }
        Ok(CallResult::Settled(Box::new(Settled { applied: settled.applied(), status, newest })))
    }
}
