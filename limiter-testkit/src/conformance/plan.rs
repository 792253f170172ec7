//! A case with the answers that a store must give.

use std::fmt;

use limiter_core::{
    EntryId, ErrorKind, MAX_COST, Mode, NowStore, Op, Outcome, Policy, Receipt, Settlement, Timestamp, decide,
};

use super::case::{Case, Operation, describe};
use crate::{Answer, OracleStore};

/// The calls of a [`Case`] on a store, each with what it must answer.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) policies: Vec<Policy>,
    pub(super) calls: Vec<(Call, Expected)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Run { mode: Mode, key: u8, policy: usize, cost: u64, id: Option<EntryId>, at: Timestamp },
    Settle { key: u8, issued_by: usize, cost: u64, at: Timestamp },
    Reset { key: u8 },
}

/// What a call came to, or must come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Answer(Box<Answer>),
    Refused(ErrorKind),
    Changed(bool),
}

/// A receipt of the oracle's, and where the stores' own comes from.
struct Issued {
    by: usize,
    key: u8,
    id: Option<EntryId>,
    receipt: Receipt,
}

struct Planner {
    oracle: OracleStore,
    plan: Plan,
    issued: Vec<Issued>,
    keys: Vec<u8>,
}

impl Plan {
    /// Works out what a store must answer: from the oracle's facts by [`decide`], and once more by definition.
    ///
    /// Every sequence ends with a peek at each key, which shows what the last operations left, and a reset.
    ///
    /// # Errors
    /// What differs, if the two ways differ.
    pub fn of(case: &Case) -> Result<Self, String> {
        let plan = Plan { policies: case.policies.clone(), calls: Vec::with_capacity(case.steps.len() + 4) };
        let mut planner = Planner { oracle: OracleStore::new(), plan, issued: Vec::new(), keys: Vec::new() };
        let mut now = case.start;
        for step in &case.steps {
            now = now.saturating_add_signed(step.after).min(Timestamp::MAX.as_micros());
            planner.step(step.operation, Timestamp::from_micros_saturating(now))?;
        }
        for key in planner.keys.clone() {
            let peek = Operation::Run { mode: Mode::Peek, key, policy: 0, cost: 1, id: None };
            planner.step(peek, Timestamp::from_micros_saturating(now))?;
            planner.step(Operation::Reset { key }, Timestamp::from_micros_saturating(now))?;
        }
        Ok(planner.plan)
    }

    /// How many calls there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

impl Planner {
    fn step(&mut self, operation: Operation, at: Timestamp) -> Result<(), String> {
        match operation {
            Operation::Run { mode, key, policy, cost, id } => {
                let policy = usize::from(policy) % self.plan.policies.len().max(1);
                let id = id.map(|id| EntryId::from_u128(id.into()));
                self.touch(key);
                self.run(Call::Run { mode, key, policy, cost, id, at })
            }
            Operation::Settle { receipt, cost } => {
                self.settle(usize::from(receipt), cost, at);
                Ok(())
            }
            Operation::Reset { key } => {
                self.touch(key);
                let there_was_one = self.oracle.reset_now(&[key]);
                self.plan.calls.push((Call::Reset { key }, Expected::Changed(there_was_one)));
                Ok(())
            }
        }
    }

    fn touch(&mut self, key: u8) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }

    fn run(&mut self, call: Call) -> Result<(), String> {
        let Call::Run { mode, key, policy, cost, id, at } = call else { return Ok(()) };
        let Some(policy) = self.plan.policies.get(policy) else { return Err("a case has no policy".to_owned()) };
        let refused = match mode {
            _ if cost == 0 => Some(ErrorKind::InvalidCost),
            Mode::Record => None,
            _ => policy.limits().iter().any(|limit| cost > limit.max()).then_some(ErrorKind::CostExceedsLimit),
        };
        if let Some(kind) = refused {
            self.plan.calls.push((call, Expected::Refused(kind)));
            return Ok(());
        }
        let key_bytes = [key];
        let mut op = Op::new(mode, &key_bytes, policy).cost(cost.min(MAX_COST)).at(at);
        op.id = if mode == Mode::Peek { None } else { id };
        let facts = self.oracle.apply_now(&op);
        facts.verify(&op).map_err(|e| format!("the oracle contradicts itself: {e}"))?;

        let log = self.oracle.entries(&key_bytes);
        let entry = match facts.outcome {
            Outcome::Nothing => None,
            Outcome::Appended(entry) | Outcome::Repeated(entry) => Some(entry),
        };
        let answer = Answer::by_definition(&op, &log, facts.now, facts.admitted, entry.map(|entry| entry.at));
        let decision = decide(&op, &facts);
        let decided = Answer::from(&decision);
        if decided != answer {
            return Err(format!("{call:?} on {log:?}\nby definition {answer}\nbut decided   {decided}"));
        }
        if let Some(receipt) = decision.receipt() {
            self.issued.push(Issued { by: self.plan.calls.len(), key, id: op.id, receipt });
        }
        self.plan.calls.push((call, Expected::Answer(Box::new(answer))));
        Ok(())
    }

    fn settle(&mut self, receipt: usize, cost: u64, at: Timestamp) {
        let Some(issued) = self.issued.get(receipt % self.issued.len().max(1)) else { return };
        let (key, receipt) = (issued.key, issued.receipt);
        // A store may name an entry by the caller's id. After a refund, a later entry with the same id and time then
        // answers to the old receipt too: the contract leaves that open.
        let log = self.oracle.entries(&[key]);
        let is_there = log.iter().any(|entry| entry.name == receipt.entry());
        let has_namesake =
            issued.id.is_some() && log.iter().any(|entry| entry.id == issued.id && entry.at == receipt.at());
        if has_namesake && !is_there {
            return;
        }
        let done = self.oracle.settle_now(&Settlement::new(&[key], receipt, cost).at(at));
        let call = Call::Settle { key, issued_by: issued.by, cost, at };
        self.plan.calls.push((call, Expected::Changed(done)));
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(answer) => answer.fmt(f),
            Self::Refused(kind) => write!(f, "an error of kind {kind:?}"),
            Self::Changed(changed) => changed.fmt(f),
        }
    }
}

impl Plan {
    pub(super) fn describe(&self, call: &Call) -> String {
        match call {
            Call::Run { mode, key, policy, cost, id, at } => {
                let policy = self.policies.get(*policy).map(describe).unwrap_or_default();
                let id = id.map(|id| format!(" with id {}", id.as_u128())).unwrap_or_default();
                format!("{mode:?} {cost} on key {key}{id} under {policy} at {}", at.as_micros())
            }
            Call::Settle { key, issued_by, cost: 0, at } => {
                format!("Refund call {issued_by} on key {key} at {}", at.as_micros())
            }
            Call::Settle { key, issued_by, cost, at } => {
                format!("Settle call {issued_by} on key {key} to {cost} at {}", at.as_micros())
            }
            Call::Reset { key } => format!("Reset key {key}"),
        }
    }
}
