//! Makes calls on a store: on the store under test, or on the reference.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use limiter_core::store::{Change, EntryId, Facts, JointOp, LogKey, Mode, Op, Settlement, decide};
use limiter_core::{Decision, Error, ErrorKind, Name, Policy, Receipt, WindowStore};

use super::call::{Call, LogId};
use super::result::{CallResult, RawFacts};
use crate::case::{Case, CaseId, Verb};

/// The keys and names of a case's logs in a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreKeys {
    /// By number. A key that is missing is its number.
    pub(crate) keys: BTreeMap<u8, Vec<u8>>,
    /// By number. Numbers after the end have the default names.
    pub(crate) names: Vec<Name>,
}

impl StoreKeys {
    /// Maps each key `k` to `key(k)` and uses the default names.
    pub(crate) fn new(keys: impl IntoIterator<Item = u8>, key: impl Fn(u8) -> Vec<u8>) -> Self {
        Self {
            keys: keys.into_iter().map(|k| (k, key(k))).collect(),
            names: Vec::new(),
        }
    }

    /// Maps the keys of a case.
    pub(crate) fn of(case: &Case, key: impl Fn(u8) -> Vec<u8>) -> Self {
        let places = case.steps.iter().map(|step| step.on.unwrap_or_default());
        Self::new(places.map(|place| place.key), key)
    }

    pub(crate) fn log<'a>(&'a self, log: &'a LogId) -> LogKey<'a> {
        let name = self.names.get(usize::from(log.name)).copied();
        let number = std::slice::from_ref(&log.key);
        let key = self.keys.get(&log.key).map_or(number, Vec::as_slice);
        LogKey::new(name.unwrap_or_else(|| log.name()), key)
    }
}

/// The method through which a store decides. A store may implement each separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// By [`apply`](WindowStore::apply), from the facts.
    Facts,
    /// By [`try_decide`](WindowStore::try_decide), if the store supports it.
    AtOnce,
}

impl Route {
    pub(crate) fn in_turn(turn: usize) -> Self {
        [Self::Facts, Self::AtOnce][turn % 2]
    }

    /// Returns the method that led to a result. `None` for methods that a call has to itself.
    pub(crate) fn method(self, result: &CallResult) -> Option<&'static str> {
        match (self, result) {
            (_, CallResult::Decided(decided)) if decided.raw_facts.is_some() => None,
            (Self::AtOnce, CallResult::Decided(_)) => Some("`try_decide`"),
            _ => None,
        }
    }
}

/// The state shared by all calls of a sequence on one store.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) store_keys: StoreKeys,
    /// The source of the sequence's fresh ids.
    salt: u128,
    /// The receipts that the store returned, by step.
    pub(crate) receipts: BTreeMap<usize, Receipt>,
}

impl Caller {
    pub(crate) fn new(store_keys: StoreKeys, salt: u128) -> Self {
        Self {
            store_keys,
            salt,
            receipts: BTreeMap::new(),
        }
    }

    /// Makes a call, or several as one, each with its step. `None` if the store cannot make them as one.
    pub(crate) async fn call<S: WindowStore>(
        &mut self,
        store: &S,
        policies: &[Policy],
        calls: &[(usize, Call)],
        route: Route,
    ) -> Option<Vec<CallResult>> {
        let made = match calls {
            [(step, call)] => {
                let alone = self.call_alone(store, policies, *step, call, route).await;
                alone.map(|result| Some(vec![result]))
            }
            _ => self.call_joint(store, policies, calls).await,
        };
        made.unwrap_or_else(|error| Some(vec![self.failed(calls, &error); calls.len()]))
    }

    /// Returns the result of an error, with the log of these calls that it identifies.
    fn failed(&self, calls: &[(usize, Call)], error: &Error) -> CallResult {
        let mut logs = calls.iter().map(|(_, call)| call.log);
        let log = logs.find(|log| {
            let log = self.store_keys.log(log);
            (error.limiter_name(), error.key()) == (Some(log.name.as_str()), Some(log.key))
        });
        CallResult::failed(error, log)
    }

    /// Returns the id of an entry. `None` if the step returned no receipt.
    pub(crate) fn id(&self, id: CaseId) -> Option<EntryId> {
        Some(EntryId::from_u128(match id {
            CaseId::Fresh(number) => self.salt ^ 1_u128.checked_shl(number.into()).unwrap_or(0),
            CaseId::Exactly(id) => id,
            CaseId::EntryOf(step) => return self.receipts.get(&step).map(Receipt::entry),
        }))
    }

    /// Returns the operation of an acquire, a peek or a record.
    pub(crate) fn op<'a>(&'a self, policies: &'a [Policy], call: &'a Call) -> Option<Op<'a>> {
        let Verb::Run(mode) = call.step.verb else {
            return None;
        };
        let log = self.store_keys.log(&call.log);
        let mut op = Op::new(mode, log.key, &policies[call.policy])
            .with_name(log.name)
            .with_cost(call.step.cost);
        op.at = call.at;
        op.id = call.step.id.and_then(|id| self.id(id));
        op.limiter_policy = call.limiter_policy.map(|policy| &policies[policy]);
        Some(op)
    }

    /// Returns the settlement or the renewal of a receipt. `None` without one.
    fn settlement<'a>(
        &'a self,
        policies: &'a [Policy],
        call: &'a Call,
        issuer: usize,
    ) -> Option<Settlement<'a>> {
        let receipt = *self.receipts.get(&issuer)?;
        let log = self.store_keys.log(&call.log);
        let mut settlement = Settlement::new(log, &policies[call.policy], receipt, call.step.cost);
        settlement.at = call.at;
        settlement.limiter_policy = call.limiter_policy.map(|policy| &policies[policy]);
        if let Verb::Renew(_) = call.step.verb {
            let id = call.step.id.and_then(|id| self.id(id));
            settlement.change = Change::Renew { id };
        }
        Some(settlement)
    }

    async fn call_alone<S: WindowStore>(
        &mut self,
        store: &S,
        policies: &[Policy],
        step: usize,
        call: &Call,
        route: Route,
    ) -> Result<CallResult, Error> {
        let (result, receipt) = match call.step.verb {
            Verb::Run(_) => {
                let Some(mut op) = self.op(policies, call) else {
                    return Err(Error::new(ErrorKind::Inconsistent, "no operation"));
                };
                op.hints.is_status = op.mode == Mode::Peek && step % 2 == 1;
                let (decision, raw_facts) = decided(store, op, route).await?;
                let result = CallResult::decided(&decision, raw_facts);
                (result, decision.receipt())
            }
            Verb::Settle(issuer) | Verb::Renew(issuer) => {
                let Some(settlement) = self.settlement(policies, call, issuer) else {
                    let text = format!("step {issuer} returned no receipt to settle");
                    return Err(Error::new(ErrorKind::Inconsistent, text));
                };
                let facts = store.settle(settlement).await?;
                facts.verify(&settlement)?;
                CallResult::settled(&settlement, facts)
            }
            Verb::Reset => {
                let there_was_a_log = store.reset(self.store_keys.log(&call.log)).await?;
                (CallResult::Reset { there_was_a_log }, None)
            }
        };
        self.receipts.extend(receipt.map(|receipt| (step, receipt)));
        Ok(result)
    }

    async fn call_joint<S: WindowStore>(
        &mut self,
        store: &S,
        policies: &[Policy],
        calls: &[(usize, Call)],
    ) -> Result<Option<Vec<CallResult>>, Error> {
        let this = &*self;
        let ops = calls.iter().filter_map(|(_, call)| {
            // A store receives what `Op::checked` returns.
            let op = this.op(policies, call)?.checked().ok()?;
            Some(JointOp {
                op,
                is_advisory: call.step.joint.is_advisory,
                keeps_charge: call.step.joint.keeps_charge,
            })
        });
        let ops: Vec<JointOp<'_>> = ops.collect();
        if ops.len() != calls.len() {
            let text = "a call of several cannot be made";
            return Err(Error::new(ErrorKind::Inconsistent, text));
        }
        let Some(all) = store.apply_all(&ops).await? else {
            return Ok(None);
        };
        if all.len() != ops.len() {
            let text = format!("{} results for {} operations", all.len(), ops.len());
            return Err(Error::new(ErrorKind::Inconsistent, text));
        }
        let mut receipts = Vec::new();
        let each = calls.iter().zip(&ops).zip(all);
        let results = each.map(|(((step, _), joint), facts)| {
            let decided = facts.and_then(|facts| from_facts(&joint.described_by(&facts), facts));
            decided.map_or_else(
                |error| this.failed(calls, &error),
                |(decision, raw_facts)| {
                    receipts.extend(decision.receipt().map(|receipt| (*step, receipt)));
                    CallResult::decided(&decision, raw_facts)
                },
            )
        });
        let results = results.collect();
        self.receipts.extend(receipts);
        Ok(Some(results))
    }
}

/// Returns a number that no other sequence uses.
pub(crate) fn salt() -> u128 {
    let random = RandomState::new();
    u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))
}

/// A decision, and what it lacks if it was made from facts.
type DecisionAndFacts = (Decision, Option<RawFacts>);

pub(crate) async fn decided<S: WindowStore>(
    store: &S,
    op: Op<'_>,
    route: Route,
) -> Result<DecisionAndFacts, Error> {
    let decided = match route {
        Route::AtOnce => store.try_decide(op),
        Route::Facts => None,
    };
    match decided {
        Some(decision) => Ok((decision?, None)),
        None => by_facts(store, op).await,
    }
}

/// Decides from the facts.
pub(crate) async fn by_facts<S: WindowStore>(
    store: &S,
    op: Op<'_>,
) -> Result<DecisionAndFacts, Error> {
    let op = op.checked()?;
    from_facts(&op, store.apply(op).await?)
}

fn from_facts(op: &Op<'_>, facts: Facts) -> Result<DecisionAndFacts, Error> {
    facts.verify(op)?;
    let raw_facts = RawFacts::from(&facts);
    Ok((decide(op, facts), Some(raw_facts)))
}
