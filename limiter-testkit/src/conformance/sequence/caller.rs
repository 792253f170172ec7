//! Makes a plan's calls on a store.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use limiter_core::store::{At, LogKey, Mode, Op, Settlement, decide};
use limiter_core::{
    Decision, Error, ErrorKind, Limiter, Name, Receipt, SharedStore, WindowStore as _,
};

use super::call_result::{CallResult, RawFacts};
use super::case::Operation;
use super::{Call, Log, Plan};

/// The keys and names of a plan's logs in a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreKeys {
    keys: BTreeMap<u8, Vec<u8>>,
    /// By number. Numbers after the end have the default names.
    names: Vec<Name>,
}

impl StoreKeys {
    /// Maps each of these keys `k` to `key(k)` and uses the default names.
    pub(crate) fn new(keys: impl IntoIterator<Item = u8>, key: impl Fn(u8) -> Vec<u8>) -> Self {
        Self {
            keys: keys.into_iter().map(|k| (k, key(k))).collect(),
            names: Vec::new(),
        }
    }

    /// Returns the same keys with other names.
    pub(crate) fn with_names(mut self, names: Vec<Name>) -> Self {
        self.names = names;
        self
    }

    /// Changes the names, and the first key.
    pub(crate) fn change(&mut self, names: Vec<Name>, first: Option<Vec<u8>>) {
        self.names = names;
        self.keys.extend(first.map(|key| (0, key)));
    }

    pub(crate) fn log(&self, log: Log) -> LogKey<'_> {
        let name = self
            .names
            .get(usize::from(log.name))
            .copied()
            .unwrap_or_else(|| log.name());
        LogKey::new(name, self.keys.get(&log.key).map_or(&[][..], Vec::as_slice))
    }
}

/// The method through which a store decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through a [`Limiter`], as an application does.
    Limiter,
    /// By [`WindowStore::apply`], from the facts.
    Facts,
    /// By [`WindowStore::try_decide`], if the store supports it.
    AtOnce,
}

impl Route {
    /// Cycles through the routes, because a store may implement each separately.
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

    /// Makes the call of a step of `plan` on `store`.
    pub(crate) async fn call(
        &mut self,
        store: &SharedStore,
        plan: &Plan,
        step: usize,
        call: &Call,
        at: At,
        route: Route,
    ) -> CallResult {
        let made = async {
            let log = self.store_keys.log(call.log);
            let entry = |step| self.receipts.get(&step).map(Receipt::entry);
            if let Some(mut op) = call.op(&plan.policies, log, self.salt, entry) {
                (op.at, op.hints.is_status) = (at, op.mode == Mode::Peek && step % 2 == 1);
                let (decision, raw_facts) = decided(store, op, route).await?;
                if let Some(receipt) = decision.receipt() {
                    self.receipts.insert(step, receipt);
                }
                return Ok(CallResult::decided(&decision, raw_facts));
            }
            let Operation::Settle {
                step: issuer, cost, ..
            } = call.operation
            else {
                return store.reset(log).await.map(CallResult::Reset);
            };
            let Some(receipt) = self.receipts.get(&issuer) else {
                let text = format!("step {issuer} returned no receipt to settle");
                return Err(Error::new(ErrorKind::Inconsistent, text));
            };
            let mut settlement = Settlement::new(log, &plan.policies[call.policy], *receipt, cost);
            settlement.at = at;
            let facts = store.settle(settlement).await?;
            facts.verify(&settlement)?;
            Ok(CallResult::settled(&settlement, facts))
        };
        made.await
            .unwrap_or_else(|error: Error| CallResult::Failed(error.kind(), format!("{error:?}")))
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
    match (route, op.limiter_policy) {
        (Route::Limiter, Some(_)) => by_limiter(store, op).await.map(|decision| (decision, None)),
        (Route::AtOnce, _) => {
            if let Some(decision) = store.try_decide(op) {
                return decision.map(|decision| (decision, None));
            }
            by_facts(store, op).await
        }
        _ => by_facts(store, op).await,
    }
}

/// Decides through a limiter, as an application does. Operations without a limiter skip this route.
async fn by_limiter(store: &SharedStore, op: Op<'_>) -> Result<Decision, Error> {
    let default = op.limiter_policy.unwrap_or(op.policy);
    let limiter = Limiter::new(op.log.name, default.clone(), store.clone());
    let key = op.log.key;
    macro_rules! call {
        ($verb:ident) => {{
            let mut request = limiter.$verb(key).policy(op.policy).cost(op.cost);
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
