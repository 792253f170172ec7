//! A case with the answers that a store must give.

use std::fmt;

use limiter_core::store::{LogKey, Mode, Op, Outcome, Settlement, decide, settled};
use limiter_core::{EntryId, ErrorKind, MAX_COST, Name, NowStore, Policy, Receipt, Timestamp};

use super::case::{Case, CaseLimiter, Operation, describe};
use crate::{Answer, OracleStore, StatusAnswer};

/// The calls of a [`Case`] on a store, each with what it must answer.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) policies: Vec<Policy>,
    pub(super) calls: Vec<(Call, Expected)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Run {
        mode: Mode,
        log: Log,
        policy: usize,
        /// The default policy of the limiter, if there is one.
        limiter_policy: Option<usize>,
        cost: u64,
        id: Option<EntryId>,
        at: Timestamp,
    },
    Settle {
        log: Log,
        policy: usize,
        issued_by: usize,
        cost: u64,
        at: Timestamp,
    },
    Reset {
        log: Log,
    },
}

/// A limiter's name and a key, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) name: u8,
    pub(super) key: u8,
}

impl Log {
    /// The log in the oracle.
    fn with<T>(self, ask: impl FnOnce(LogKey<'_>) -> T) -> T {
        ask(LogKey::new(self.name(), &[self.key]))
    }

    /// The name is the same in every run: each name is kept for the life of the process.
    pub(super) fn name(self) -> Name {
        match self.name {
            0 => Name::new("conformance"),
            name => Name::new(&format!("conformance:{name}")),
        }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}", self.key)?;
        if self.name == 0 { Ok(()) } else { write!(f, " of limiter {}", self.name) }
    }
}

/// What a call came to, or must come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Answer(Box<Answer>),
    Refused(ErrorKind),
    Settled(bool, Box<StatusAnswer>),
    Reset(bool),
}

/// A receipt of the oracle's, and where the stores' own comes from.
struct Issued {
    by: usize,
    log: Log,
    id: Option<EntryId>,
    receipt: Receipt,
}

struct Planner {
    oracle: OracleStore,
    plan: Plan,
    limiters: Vec<CaseLimiter>,
    issued: Vec<Issued>,
    logs: Vec<Log>,
}

impl Plan {
    /// Works out what a store must answer: from the oracle's facts by [`decide`], and once more by definition.
    ///
    /// Every sequence ends with a peek at each log, which shows what the last operations left, and a reset.
    ///
    /// # Errors
    /// What differs, if the two ways differ.
    pub fn of(case: &Case) -> Result<Self, String> {
        if case.policies.is_empty() || case.limiters.is_empty() {
            return Err("a case needs a policy and a limiter".to_owned());
        }
        let plan = Plan { policies: case.policies.clone(), calls: Vec::with_capacity(case.steps.len() + 4) };
        let (oracle, limiters) = (OracleStore::new(), case.limiters.clone());
        let mut planner = Planner { oracle, plan, limiters, issued: Vec::new(), logs: Vec::new() };
        let mut now = case.start;
        for step in &case.steps {
            now = now.saturating_add_signed(step.after).min(Timestamp::MAX.as_micros());
            planner.step(step.operation, Timestamp::from_micros_saturating(now))?;
        }
        let at = Timestamp::from_micros_saturating(now);
        for log in planner.logs.clone() {
            planner.run(Call::Run { mode: Mode::Peek, log, policy: 0, limiter_policy: None, cost: 1, id: None, at })?;
            planner.reset(log);
        }
        Ok(planner.plan)
    }

    /// Returns how many calls there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

impl Planner {
    fn step(&mut self, operation: Operation, at: Timestamp) -> Result<(), String> {
        let limiter = |number: u8| self.limiters[usize::from(number) % self.limiters.len()];
        let policies = self.plan.policies.len();
        match operation {
            Operation::Run { mode, limiter: number, key, policy, cost, id } => {
                let limiter = limiter(number);
                let log = Log { name: limiter.name, key };
                let policy = usize::from(policy) % policies;
                let limiter_policy = limiter.policy.map(|policy| usize::from(policy) % policies);
                let id = id.map(|id| EntryId::from_u128(id.into()));
                self.touch(log);
                self.run(Call::Run { mode, log, policy, limiter_policy, cost, id, at })
            }
            Operation::Settle { receipt, cost, policy } => {
                self.settle(usize::from(receipt), cost, usize::from(policy) % policies, at)
            }
            Operation::Reset { limiter: number, key } => {
                let log = Log { name: limiter(number).name, key };
                self.touch(log);
                self.reset(log);
                Ok(())
            }
        }
    }

    fn touch(&mut self, log: Log) {
        if !self.logs.contains(&log) {
            self.logs.push(log);
        }
    }

    fn reset(&mut self, log: Log) {
        let there_was_one = log.with(|log| self.oracle.reset_now(log));
        self.plan.calls.push((Call::Reset { log }, Expected::Reset(there_was_one)));
    }

    fn run(&mut self, call: Call) -> Result<(), String> {
        let Call::Run { mode, log, policy, limiter_policy, cost, id, at } = call else { return Ok(()) };
        let policy = &self.plan.policies[policy];
        let refused = match mode {
            _ if cost == 0 => Some(ErrorKind::InvalidCost),
            Mode::Record => None,
            _ => policy.limits().iter().any(|limit| cost > limit.max()).then_some(ErrorKind::CostExceedsLimit),
        };
        if let Some(kind) = refused {
            self.plan.calls.push((call, Expected::Refused(kind)));
            return Ok(());
        }
        let key = [log.key];
        let mut op = Op::new(mode, &key, policy).with_name(log.name()).with_cost(cost.min(MAX_COST)).at(at);
        op.id = if mode == Mode::Peek { None } else { id };
        op.limiter_policy = limiter_policy.map(|policy| &self.plan.policies[policy]);
        let facts = self.oracle.apply_now(&op);
        facts.verify(&op).map_err(|e| format!("the oracle contradicts itself: {e}"))?;

        let entries = self.oracle.entries(op.log);
        let entry = match facts.outcome {
            Outcome::Nothing => None,
            Outcome::Appended(entry) | Outcome::Repeated(entry) => Some(entry),
        };
        let receipt = entry.map(|entry| entry.at);
        let answer = Answer::by_definition(&op, &entries, facts.log.now, facts.admitted, receipt);
        let id = op.id;
        let decision = decide(&op, facts);
        let decided = Answer::from(&decision);
        if decided != answer {
            return Err(format!("{call:?} on {entries:?}\nby definition {answer}\nbut decided   {decided}"));
        }
        if let Some(receipt) = decision.receipt() {
            self.issued.push(Issued { by: self.plan.calls.len(), log, id, receipt });
        }
        self.plan.calls.push((call, Expected::Answer(Box::new(answer))));
        Ok(())
    }

    fn settle(&mut self, receipt: usize, cost: u64, policy: usize, at: Timestamp) -> Result<(), String> {
        let Some(issued) = self.issued.get(receipt % self.issued.len().max(1)) else { return Ok(()) };
        let (log, receipt) = (issued.log, issued.receipt);
        // A store may name an entry by the caller's id. After a refund, a later entry with the same id and time then
        // answers to the old receipt too: the contract leaves that open.
        let entries = log.with(|log| self.oracle.entries(log));
        let is_there = entries.iter().any(|entry| entry.name == receipt.entry());
        let has_namesake =
            issued.id.is_some() && entries.iter().any(|entry| entry.id == issued.id && entry.at == receipt.at());
        if has_namesake && !is_there {
            return Ok(());
        }
        let call = Call::Settle { log, policy, issued_by: issued.by, cost, at };
        let by = &self.plan.policies[policy];
        let facts = log.with(|log| {
            let settlement = Settlement::new(log, by, receipt, cost).at(at);
            let facts = self.oracle.settle_now(&settlement);
            facts.verify(&settlement).map(|()| settled(&settlement, facts))
        });
        let settled = facts.map_err(|e| format!("the oracle contradicts itself: {e}"))?;
        let entries = log.with(|log| self.oracle.entries(log));
        let answer = StatusAnswer::by_definition(by, &entries, settled.status().at());
        let status = StatusAnswer::from(settled.status());
        if status != answer {
            return Err(format!("{call:?} on {entries:?}\nby definition {answer}\nbut settled   {status}"));
        }
        self.plan.calls.push((call, Expected::Settled(settled.applied(), Box::new(answer))));
        Ok(())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(answer) => answer.fmt(f),
            Self::Refused(kind) => write!(f, "an error of kind {kind:?}"),
            Self::Settled(applied, status) => {
                write!(f, "{}, {status}", if *applied { "applied" } else { "not applied" })
            }
            Self::Reset(there_was_one) => f.write_str(if *there_was_one { "removed" } else { "no log" }),
        }
    }
}

impl Plan {
    pub(super) fn describe(&self, call: &Call) -> String {
        let policy = |policy: &usize| self.policies.get(*policy).map(describe).unwrap_or_default();
        match call {
            Call::Run { mode, log, policy: own, limiter_policy, cost, id, at } => {
                let id = id.map(|id| format!(" with id {}", id.as_u128())).unwrap_or_default();
                let default = match limiter_policy {
                    Some(default) if default != own => format!(" (default {})", policy(default)),
                    _ => String::new(),
                };
                format!("{mode:?} {cost} on {log}{id} under {}{default} at {}", policy(own), at.as_micros())
            }
            Call::Settle { log, policy: by, issued_by, cost, at } => {
                let what = if *cost == 0 { "Refund".to_owned() } else { format!("Settle to {cost}") };
                format!("{what} the entry of call {issued_by} on {log}, by {} at {}", policy(by), at.as_micros())
            }
            Call::Reset { log } => format!("Reset {log}"),
        }
    }
}
