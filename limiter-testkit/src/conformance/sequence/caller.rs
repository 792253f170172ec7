//! Puts one call to a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use limiter_core::store::{At, LogKey, Mode, Op, Settlement, decide, settled};
use limiter_core::{Decision, EntryId, Error, ErrorKind, Limiter, Name, Receipt, Timestamp, WindowStore};

use super::plan::{Call, Log, Plan, Planned};
use super::reply::{Decided, Got, Hidden, Reply, Settled};
use crate::answer::{Answer, StatusAnswer};

/// Where the logs of a plan are in a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreKeys {
    keys: BTreeMap<u8, Vec<u8>>,
    /// By number; further numbers have the usual names.
    names: Vec<Name>,
}

impl StoreKeys {
    /// The plan's key `k` becomes `key(k)`, its names become the usual ones.
    pub(crate) fn new(plan: &Plan, key: impl Fn(u8) -> Vec<u8>) -> Self {
        Self::of(plan.logs(), key)
    }

    /// As [`new`](Self::new), for these logs.
    pub(crate) fn of(logs: impl IntoIterator<Item = Log>, key: impl Fn(u8) -> Vec<u8>) -> Self {
        Self { keys: logs.into_iter().map(|log| (log.key, key(log.key))).collect(), names: Vec::new() }
    }

    /// The same keys under other names.
    pub(crate) fn with_names(mut self, names: Vec<Name>) -> Self {
        self.names = names;
        self
    }

    pub(crate) fn log(&self, log: Log) -> LogKey<'_> {
        let name = self.names.get(usize::from(log.name)).copied().unwrap_or_else(|| log.name());
        LogKey::new(name, self.keys.get(&log.key).map_or(&[][..], Vec::as_slice))
    }
}

/// By which of its methods a store is asked to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through a [`Limiter`], as a user's program does.
    Limiter,
    /// By [`WindowStore::apply`], from the facts.
    Facts,
    /// By [`WindowStore::decide_at_once`], if the store can.
    AtOnce,
}

impl Route {
    /// In turns: a store may have its own code for each.
    pub(crate) fn in_turn(turn: usize) -> Self {
        [Self::Limiter, Self::Facts, Self::AtOnce][turn % 3]
    }
}

/// What a store gave for the calls so far.
#[derive(Clone, Debug, Default)]
struct Given {
    receipts: BTreeMap<usize, Receipt>,
    entries: BTreeMap<usize, EntryId>,
}

/// What every call of a sequence needs.
pub(crate) struct Caller {
    store_keys: StoreKeys,
    /// What the fresh ids of the sequence are made from.
    salt: u128,
    given: Given,
}

impl Caller {
    pub(crate) fn new(store_keys: &StoreKeys, salt: u128) -> Self {
        Self { store_keys: store_keys.clone(), salt, given: Given::default() }
    }

    /// Puts call `number` of `plan` to `store`.
    pub(crate) async fn call<S>(
        &mut self,
        store: &Arc<S>,
        plan: &Plan,
        number: usize,
        call: &Call,
        at: At,
        route: Route,
    ) -> Got
    where
        S: WindowStore + ?Sized,
    {
        match *call {
            Call::Run { mode, log, policy, limiter_policy, cost, id, .. } => {
                let log = self.store_keys.log(log);
                let mut op = Op::new(mode, log.key, &plan.policies[policy]).with_name(log.name).with_cost(cost);
                (op.id, op.at) = (id.map(|id| id.entry_id(self.salt)), at);
                op.limiter_policy = limiter_policy.map(|policy| &plan.policies[policy]);
                let (decision, hidden) = decided(store, op, route).await?;
                if let Some(receipt) = decision.receipt() {
                    self.given.receipts.insert(number, receipt);
                    self.given.entries.insert(number, receipt.entry());
                }
                let answer = Answer::from(&decision);
                Ok(Reply::Decided(Box::new(Decided { answer, repeats: None, hidden })))
            }
            Call::Settle { log, policy, receipt: issued_by, cost, .. } => {
                let Some(receipt) = self.given.receipts.get(&issued_by) else {
                    let text = format!("call {issued_by} gave no receipt to settle");
                    return Err(Error::new(ErrorKind::Inconsistent, text));
                };
                let mut settlement = Settlement::new(self.store_keys.log(log), &plan.policies[policy], *receipt, cost);
                settlement.at = at;
                let facts = store.settle(settlement).await?;
                facts.verify(&settlement)?;
                let newest = facts.log.newest;
                let settled = settled(&settlement, facts);
                let status = StatusAnswer::from(settled.status());
                Ok(Reply::Settled(Box::new(Settled { applied: settled.applied(), status, newest })))
            }
            Call::Reset { log } => store.reset(self.store_keys.log(log)).await.map(Reply::Reset),
        }
    }

    /// Puts a planned call at its own time.
    pub(crate) async fn call_planned<S>(&mut self, store: &Arc<S>, plan: &Plan, number: usize, route: Route) -> Got
    where
        S: WindowStore + ?Sized,
    {
        let planned = &plan.calls[number];
        let at = At::Given(planned.call.at().unwrap_or(Timestamp::EPOCH));
        let got = self.call(store, plan, number, &planned.call, at, route).await;
        self.identify(number, planned, got)
    }

    /// Finds the call that appended the entry of an answer, by the store's id of the entry.
    pub(crate) fn identify(&self, number: usize, planned: &Planned, mut got: Got) -> Got {
        if let (Ok(Reply::Decided(decided)), Some(entry)) = (&mut got, self.given.entries.get(&number)) {
            let same = |call: &usize| *call != number && self.given.entries.get(call) == Some(entry);
            decided.repeats = planned.held.iter().copied().find(same);
        }
        got
    }
}

pub(crate) async fn decided<S>(store: &Arc<S>, op: Op<'_>, route: Route) -> Result<(Decision, Option<Hidden>), Error>
where
    S: WindowStore + ?Sized,
{
    match (route, op.limiter_policy) {
        (Route::Limiter, Some(_)) => by_limiter(store, op).await.map(|decision| (decision, None)),
        (Route::AtOnce, _) => {
            if let Some(decision) = store.decide_at_once(op) {
                return decision.map(|decision| (decision, None));
            }
            by_facts(&**store, op).await
        }
        _ => by_facts(&**store, op).await,
    }
}

/// Decides as a user's program does. Operations without a limiter have no such way.
async fn by_limiter<S: WindowStore + ?Sized>(store: &Arc<S>, op: Op<'_>) -> Result<Decision, Error> {
    let default = op.limiter_policy.unwrap_or(op.policy);
    let limiter = Limiter::new(op.log.name, default.clone(), Arc::clone(store));
    let key = op.log.key;
    macro_rules! call {
        ($verb:ident) => {{
            let mut request = limiter.$verb(key).policy(op.policy).cost(op.cost);
            if let At::Given(at) = op.at {
                request = request.at(at);
            }
            if let Some(id) = op.id {
                request = request.id(id);
            }
            request.await
        }};
    }
    match op.mode {
        Mode::Acquire => call!(acquire),
        Mode::Peek => call!(peek),
        Mode::Record => call!(record),
    }
}

/// Decides from the facts.
pub(crate) async fn by_facts<S>(store: &S, op: Op<'_>) -> Result<(Decision, Option<Hidden>), Error>
where
    S: WindowStore + ?Sized,
{
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    let hidden = Hidden::from(&facts);
    Ok((decide(&op, facts), Some(hidden)))
}
