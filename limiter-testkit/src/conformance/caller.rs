//! Makes a model's calls on a store.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use limiter_core::store::{At, JointOp, LogKey, Mode, Op, decide};
use limiter_core::{
    Decision, Error, ErrorKind, Limiter, Name, Receipt, Settled, SharedStore, WindowStore as _,
};

use super::case::{Case, Verb};
use super::model::{Call, LogId, Model};
use super::result::{CallResult, RawFacts};

/// The keys and names of a case's logs in a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreKeys {
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
        let keys = case
            .steps
            .iter()
            .map(|step| step.on.unwrap_or_default().key);
        Self::new(keys, key)
    }

    pub(crate) fn log(&self, log: LogId) -> LogKey<'_> {
        let name = self.names.get(usize::from(log.name)).copied();
        let key = self.keys.get(&log.key).map_or(&[][..], Vec::as_slice);
        LogKey::new(name.unwrap_or_else(|| log.name()), key)
    }
}

/// The method through which a store decides. A store may implement each separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through a [`Limiter`], as an application does.
    Limiter,
    /// By [`apply`](limiter_core::WindowStore::apply), from the facts.
    Facts,
    /// By [`try_decide`](limiter_core::WindowStore::try_decide), if the store supports it.
    AtOnce,
}

impl Route {
    pub(crate) fn in_turn(turn: usize) -> Self {
        [Self::Limiter, Self::Facts, Self::AtOnce][turn % 3]
    }
}

/// The state shared by all calls of a sequence.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) store_keys: StoreKeys,
    /// The source of the sequence's fresh ids.
    salt: u128,
    /// The receipts that the store returned, by step.
    pub(crate) receipts: BTreeMap<usize, Receipt>,
}

impl Caller {
    pub(crate) fn new(store_keys: StoreKeys) -> Self {
        Self {
            store_keys,
            salt: salt(),
            receipts: BTreeMap::new(),
        }
    }

    /// Makes the call of a step on `store`.
    pub(crate) async fn call(
        &mut self,
        store: &SharedStore,
        model: &Model,
        step: usize,
        call: &Call,
        route: Route,
    ) -> CallResult {
        let result = self.try_call(store, model, step, call, route).await;
        result.unwrap_or_else(|error| CallResult::Failed(error.kind(), format!("{error:?}")))
    }

    /// Makes calls on `store` as one. `None` if the store cannot.
    pub(crate) async fn call_joint(
        &mut self,
        store: &SharedStore,
        model: &Model,
        calls: &[(usize, Call)],
    ) -> Option<Vec<CallResult>> {
        let failed = |error: &Error| CallResult::Failed(error.kind(), format!("{error:?}"));
        let entry = |step| self.receipts.get(&step).map(Receipt::entry);
        let ops = calls.iter().filter_map(|(_, call)| {
            let log = self.store_keys.log(call.log);
            call.joint_op_on(&model.policies, log, self.salt, entry)
        });
        let ops: Vec<JointOp<'_>> = ops.collect();
        let all = match store.apply_all(&ops).await {
            Ok(all) => all?,
            Err(error) => return Some(vec![failed(&error); calls.len()]),
        };
        if all.len() != ops.len() {
            let text = format!("{} results for {} operations", all.len(), ops.len());
            let error = Error::new(ErrorKind::Inconsistent, text);
            return Some(vec![failed(&error); calls.len()]);
        }
        let mut results = Vec::new();
        let mut receipts = Vec::new();
        for (((step, _), joint), facts) in calls.iter().zip(&ops).zip(all) {
            let decided = facts.and_then(|facts| {
                let op = joint.answered_by(&facts);
                facts.verify(&op)?;
                let raw_facts = RawFacts::from(&facts);
                Ok((decide(&op, facts), raw_facts))
            });
            results.push(match decided {
                Ok((decision, raw_facts)) => {
                    receipts.extend(decision.receipt().map(|receipt| (*step, receipt)));
                    CallResult::decided(&decision, Some(raw_facts))
                }
                Err(error) => failed(&error),
            });
        }
        self.receipts.extend(receipts);
        Some(results)
    }

    async fn try_call(
        &mut self,
        store: &SharedStore,
        model: &Model,
        step: usize,
        call: &Call,
        route: Route,
    ) -> Result<CallResult, Error> {
        let log = self.store_keys.log(call.log);
        let entry = |step| self.receipts.get(&step).map(Receipt::entry);
        if let Some(mut op) = call.op(&model.policies, log, self.salt, entry) {
            op.hints.is_status = op.mode == Mode::Peek && step % 2 == 1;
            let (decision, raw_facts) = decided(store, op, route).await?;
            if let Some(receipt) = decision.receipt() {
                self.receipts.insert(step, receipt);
            }
            return Ok(CallResult::decided(&decision, raw_facts));
        }
        let Some(issuer) = call.issuer() else {
            let there_was_a_log = store.reset(log).await?;
            return Ok(CallResult::Reset { there_was_a_log });
        };
        let Some(receipt) = self.receipts.get(&issuer) else {
            let text = format!("step {issuer} returned no receipt to settle");
            return Err(Error::new(ErrorKind::Inconsistent, text));
        };
        let settlement = call.settlement(&model.policies, log, *receipt, self.salt);
        let facts = store.settle(settlement).await?;
        facts.verify(&settlement)?;
        let renewed = Settled::new(&settlement, facts.clone()).receipt();
        if let (Verb::Renew(_), Some(receipt)) = (call.step.verb, renewed) {
            self.receipts.insert(step, receipt);
        }
        Ok(CallResult::settled(&settlement, facts))
    }
}

/// Returns a number that no other sequence uses.
pub(crate) fn salt() -> u128 {
    let random = RandomState::new();
    u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))
}

pub(crate) async fn decided(
    store: &SharedStore,
    op: Op<'_>,
    route: Route,
) -> Result<(Decision, Option<RawFacts>), Error> {
    let decided = match (route, op.limiter_policy) {
        (Route::Limiter, Some(default)) => {
            let limiter = Limiter::new(op.log.name, default.clone(), store.clone());
            Some(by_limiter(&limiter, op).await)
        }
        (Route::AtOnce, _) => store.try_decide(op),
        _ => None,
    };
    match decided {
        Some(decision) => Ok((decision?, None)),
        None => by_facts(store, op).await,
    }
}

/// Decides through a limiter, as an application does.
async fn by_limiter(limiter: &Limiter<SharedStore>, op: Op<'_>) -> Result<Decision, Error> {
    macro_rules! call {
        ($verb:ident) => {{
            let mut request = limiter.$verb(op.log.key).policy(op.policy).cost(op.cost);
            if let At::Given(at) = op.at {
                request = request.at(at);
            }
            if let Some(id) = op.id {
                request = request.idempotency_key(id.as_u128());
            }
            request
        }};
    }
    match op.mode {
        Mode::Acquire => call!(acquire).await,
        Mode::Peek => call!(peek).await,
        Mode::Record => call!(record).await,
    }
}

/// Decides from the facts.
pub(crate) async fn by_facts(
    store: &SharedStore,
    op: Op<'_>,
) -> Result<(Decision, Option<RawFacts>), Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    let raw_facts = RawFacts::from(&facts);
    Ok((decide(&op, facts), Some(raw_facts)))
}
