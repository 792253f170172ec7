//! Computes the expected results, call by call.

use std::collections::BTreeMap;
use std::sync::Arc;

use limiter_core::store::{EntryId, LogKey, Mode, Op, Settlement, decide};
use limiter_core::{ErrorKind, MAX_COST, Policy, Receipt, SyncStore, Timestamp};

use super::call_result::{CallResult, RawFacts};
use super::case::{Case, CaseId, CaseLimiter, Operation, Place};
use super::{Call, Log, Plan, Planned, everything};
use crate::reference::{ReferenceEntry, ReferenceStore, longest_exact};

#[derive(Clone, Debug)]
pub(crate) struct Planner {
    reference: ReferenceStore,
    pub(crate) plan: Plan,
    limiters: Vec<CaseLimiter>,
    /// The receipts, by the steps that returned them.
    issued: BTreeMap<usize, Issued>,
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

impl Planner {
    /// The salt of the reference store's ids. Any value except 0: real runs have a random salt.
    pub(crate) const SALT: u128 = 0x5a17 << 64 | 0x5a17;

    pub(crate) fn new(case: &Case) -> Self {
        let mut policies = case.policies.clone();
        policies.push(everything());
        let plan = Plan {
            policies: policies.into(),
            start: Timestamp::from_micros_saturating(case.start),
            calls: Vec::new(),
        };
        Self {
            reference: ReferenceStore::new(),
            plan,
            limiters: case.limiters.clone(),
            issued: BTreeMap::new(),
            logs: Vec::new(),
        }
    }

    fn limiter(&self, place: Place) -> CaseLimiter {
        let number = usize::from(place.limiter) % self.limiters.len().max(1);
        self.limiters
            .get(number)
            .copied()
            .unwrap_or(CaseLimiter::NONE)
    }

    fn log(&self, place: Place) -> Log {
        Log {
            name: self.limiter(place).name,
            key: place.key,
        }
    }

    /// Returns the index of a policy of the case, which excludes the added one.
    fn policy(&self, number: u8) -> usize {
        usize::from(number) % (self.plan.policies.len() - 1).max(1)
    }

    /// Returns the time of a log's newest entry.
    pub(crate) fn newest(&self, log: Log) -> Option<Timestamp> {
        self.entries(log).last().map(|entry| entry.at)
    }

    /// Returns the entries of a log.
    pub(crate) fn entries(&self, log: Log) -> Vec<ReferenceEntry> {
        self.reference.entries(LogKey::new(log.name(), &[log.key]))
    }

    /// Returns the id of the entry that a step returned.
    pub(crate) fn entry(&self, step: usize) -> Option<EntryId> {
        self.issued.get(&step).map(|issued| issued.receipt.entry())
    }

    /// Returns the first step that returned a receipt of an entry.
    pub(crate) fn appended_by(&self, entry: &ReferenceEntry) -> Option<usize> {
        self.issued
            .iter()
            .find(|(_, issued)| issued.receipt.entry() == entry.name)
            .map(|(step, _)| *step)
    }

    /// Returns the call of a step. Returns `None` if the contract does not specify its result, or if there is no receipt to
    /// settle.
    pub(crate) fn call(&self, operation: Operation, at: Timestamp) -> Option<Call> {
        let (log, limiter_policy, policy) = match operation {
            Operation::Run {
                id: Some(CaseId::EntryOf(step)),
                ..
            } if !self.issued.contains_key(&step) => return None,
            Operation::Run { on, policy, .. } => (self.log(on), self.limiter(on).policy, policy),
            Operation::Settle {
                step, on, policy, ..
            } => {
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
        Some(Call {
            operation,
            log,
            policy: self.policy(policy),
            limiter_policy,
            at,
            on_clock: false,
        })
    }

    /// Returns a peek that covers every entry of a log.
    pub(crate) fn peek_all(&self, log: Log, at: Timestamp) -> Call {
        Call::peek(log, self.plan.policies.len() - 1, at)
    }

    /// Adds a call with its expected result to the plan.
    pub(crate) fn expect(&mut self, step: usize, call: Call) -> &CallResult {
        let number = self.skip(step, call);
        let result = self.apply(number);
        let own = |step| self.issued.get(&step).map(|issued| issued.receipt);
        let expected = result.with_original(|| self.original(step, &call, own));
        let planned = Arc::make_mut(&mut self.plan.calls[number]);
        planned.expected = expected;
        &planned.expected
    }

    /// Adds a call, and compares the store's result with the expected one. `receipts` are the store's receipts, by step.
    ///
    /// # Errors
    /// Returns a wrong result.
    pub(crate) fn compare(
        &mut self,
        step: usize,
        call: Call,
        receipts: &BTreeMap<usize, Receipt>,
        got: &CallResult,
    ) -> Result<(), CallResult> {
        self.expect(step, call);
        let got = got
            .clone()
            .with_original(|| self.original(step, &call, |step| receipts.get(&step).copied()));
        let agrees = self
            .plan
            .calls
            .last()
            .is_some_and(|planned| planned.expected.agrees(&got));
        if agrees { Ok(()) } else { Err(got) }
    }

    /// Returns the step whose entry a step's receipt names, if it is another one.
    fn original(
        &self,
        step: usize,
        call: &Call,
        receipt: impl Fn(usize) -> Option<Receipt>,
    ) -> Option<usize> {
        let id = if let Operation::Run { id, .. } = call.operation {
            id
        } else {
            None
        };
        // By L13, an entry whose caller chose the store's id of another entry may share that id.
        if let Some(CaseId::EntryOf(_)) = id {
            return None;
        }
        // By L9, an append takes its id from an older entry, and the store may have used that id for both.
        let entry =
            |step: usize| receipt(step).map(|receipt| (receipt.entry(), id.map(|_| receipt.at())));
        let own = entry(step)?;
        let is_it = |(other, issued): &(&usize, &Issued)| {
            **other != step
                && issued.log == call.log
                && entry(**other) == Some(own)
                && self.holds(issued)
        };
        self.issued.iter().find(is_it).map(|(step, _)| *step)
    }

    fn holds(&self, issued: &Issued) -> bool {
        self.entries(issued.log)
            .iter()
            .any(|entry| entry.name == issued.receipt.entry())
    }

    /// Adds a call whose future is dropped, without effect. Returns its number.
    pub(crate) fn skip(&mut self, step: usize, call: Call) -> usize {
        if !self.logs.contains(&call.log) {
            self.logs.push(call.log);
        }
        self.plan.calls.push(Arc::new(Planned {
            call,
            expected: CallResult::Dropped,
            step,
        }));
        self.plan.calls.len() - 1
    }

    /// Applies a planned call to the reference store's log.
    fn apply(&mut self, number: usize) -> CallResult {
        let Planned { call, step, .. } = *self.plan.calls[number];
        let (policies, key) = (Arc::clone(&self.plan.policies), [call.log.key]);
        let log = LogKey::new(call.log.name(), &key);
        self.reference.stop_clock(call.at);
        match (
            call.op(&policies, log, Self::SALT, |step| self.entry(step)),
            call.operation,
        ) {
            (Some(op), _) => self.run(step, call.log, op),
            (None, Operation::Settle { step, cost, .. }) => {
                let Some(issued) = self.issued.get(&step) else {
                    return CallResult::Failed(ErrorKind::Inconsistent, String::new());
                };
                let mut settlement =
                    Settlement::new(log, &policies[call.policy], issued.receipt, cost);
                settlement.at = call.time();
                CallResult::settled(&settlement, self.reference.settle_now(&settlement))
            }
            (None, _) => CallResult::Reset(self.reference.reset_now(log)),
        }
    }

    /// Applies a dropped call, perhaps at another time. Its receipt is lost.
    pub(crate) fn apply_dropped(&mut self, number: usize, at: Option<Timestamp>) -> CallResult {
        let planned = Arc::make_mut(&mut self.plan.calls[number]);
        planned.call.at = at.unwrap_or(planned.call.at);
        let step = planned.step;
        let result = self.apply(number);
        self.issued.remove(&step);
        result
    }

    /// Forgets a log, as a store may do.
    pub(crate) fn forget(&mut self, log: Log) {
        _ = self
            .reference
            .reset_now(LogKey::new(log.name(), &[log.key]));
    }

    fn run(&mut self, step: usize, log: Log, mut op: Op<'_>) -> CallResult {
        let refused = match op.mode {
            _ if op.cost == 0 => Some(ErrorKind::InvalidCost),
            Mode::Record => None,
            _ => op
                .policy
                .limits()
                .iter()
                .any(|limit| op.cost > limit.max())
                .then_some(ErrorKind::CostExceedsLimit),
        };
        if let Some(kind) = refused {
            return CallResult::Failed(kind, String::new());
        }
        op.cost = op.cost.min(MAX_COST);
        op.id = op.id.filter(|_| op.mode != Mode::Peek);
        let policies = [Some(op.policy), op.limiter_policy].into_iter().flatten();
        let limits: Vec<_> = policies.flat_map(Policy::limits).copied().collect();
        if op.id.is_some() && longest_exact(&limits) == 0 {
            return CallResult::Failed(ErrorKind::NeedsExactLimit, String::new());
        }
        let facts = self.reference.apply_now(&op);
        let raw_facts = RawFacts::from(&facts);
        let decision = decide(&op, facts);
        if let Some(receipt) = decision.receipt() {
            self.issued.insert(
                step,
                Issued {
                    log,
                    id: op.id,
                    receipt,
                },
            );
        }
        CallResult::decided(&decision, Some(raw_facts))
    }
}
