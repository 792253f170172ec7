//! A plan, put to a store.

use std::fmt;
use std::sync::Arc;

use limiter_core::store::{At, LogKey, Mode, Op, Settlement, decide, settled};
use limiter_core::{Decision, Error, Limiter, Receipt, WindowStore};

use super::plan::{Call, Expected, Plan};
use crate::{Answer, StatusAnswer};

/// Where a store's answer is not what it must be. [`Display`](fmt::Display) prints every call up to there.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The number of the call that differs.
    pub call: usize,
    story: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.story)
    }
}

impl std::error::Error for Mismatch {}

/// What a store answered.
enum Got {
    Answered(Expected),
    Failed(Error),
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(answer) => answer.fmt(f),
            Self::Failed(error) => write!(f, "the error {error:?}"),
        }
    }
}

/// Puts the calls of `plan` to `store`, one after another, and compares every field of every answer. The case's key `k`
/// becomes the store's key `keys(k)`, which must be new under every name.
///
/// Stores name entries differently: what is compared of a receipt is whether there is one, its time and its window.
///
/// # Errors
/// The first [`Mismatch`].
pub async fn replay<S>(store: &Arc<S>, plan: &Plan, keys: impl Fn(u8) -> Vec<u8>) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let mut receipts: Vec<Option<Receipt>> = vec![None; plan.calls.len()];
    for (i, (call, expected)) in plan.calls.iter().enumerate() {
        let got = put(store, plan, call, &keys, (i, &mut receipts)).await;
        let agrees = match (&got, expected) {
            (Got::Answered(answer), expected) => answer == expected,
            (Got::Failed(error), Expected::Refused(kind)) => error.kind() == *kind,
            (Got::Failed(_), _) => false,
        };
        if !agrees {
            return Err(Mismatch { call: i, story: story(plan, i, &got) });
        }
    }
    Ok(())
}

/// [`replay`] for a store that needs no runtime, on keys that begin with `prefix`.
///
/// # Errors
/// As [`replay`].
pub fn replay_blocking<S>(store: &Arc<S>, plan: &Plan, prefix: &str) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    futures::executor::block_on(replay(store, plan, |key| format!("{prefix}/{key}").into_bytes()))
}

async fn put<S>(
    store: &Arc<S>,
    plan: &Plan,
    call: &Call,
    keys: impl Fn(u8) -> Vec<u8>,
    (i, receipts): (usize, &mut [Option<Receipt>]),
) -> Got
where
    S: WindowStore + ?Sized,
{
    match *call {
        Call::Run { mode, log, policy, limiter_policy, cost, id, at } => {
            let (key, policy) = (keys(log.key), &plan.policies[policy]);
            let mut op = Op::new(mode, &key, policy).with_name(log.name()).with_cost(cost);
            (op.id, op.at) = (id, At::Given(at));
            op.limiter_policy = limiter_policy.map(|policy| &plan.policies[policy]);
            // In turns: a store may have its own way for each.
            let decision = match i % 3 {
                0 => by_limiter(store, op).await,
                1 => by_facts(&**store, op).await,
                _ => at_once(&**store, op).await,
            };
            match decision {
                Ok(decision) => {
                    receipts[i] = decision.receipt();
                    Got::Answered(Expected::Answer(Box::new(Answer::from(&decision))))
                }
                Err(error) => Got::Failed(error),
            }
        }
        Call::Settle { log, policy, issued_by, cost, at } => {
            let Some(receipt) = receipts[issued_by] else {
                let text = format!("call {issued_by} gave no receipt to settle");
                return Got::Failed(Error::new(limiter_core::ErrorKind::Inconsistent, text));
            };
            let key = keys(log.key);
            let log = LogKey::new(log.name(), &key);
            let settlement = Settlement::new(log, &plan.policies[policy], receipt, cost).at(at);
            let facts = store.settle(settlement).await.and_then(|facts| facts.verify(&settlement).map(|()| facts));
            match facts {
                Ok(facts) => {
                    let settled = settled(&settlement, facts);
                    let status = StatusAnswer::from(settled.status());
                    Got::Answered(Expected::Settled(settled.applied(), Box::new(status)))
                }
                Err(error) => Got::Failed(error),
            }
        }
        Call::Reset { log } => {
            let reset = store.reset(LogKey::new(log.name(), &keys(log.key))).await;
            reset.map_or_else(Got::Failed, |there_was_one| Got::Answered(Expected::Reset(there_was_one)))
        }
    }
}

/// Decides as a user's program does. Operations without a limiter have no such way.
async fn by_limiter<S: WindowStore + ?Sized>(store: &Arc<S>, op: Op<'_>) -> Result<Decision, Error> {
    let Some(default) = op.limiter_policy else { return by_facts(&**store, op).await };
    let limiter = Limiter::new(op.log.name, default.clone(), Arc::clone(store));
    let At::Given(at) = op.at else { return by_facts(&**store, op).await };
    let key = op.log.key;
    macro_rules! call {
        ($verb:ident) => {{
            let request = limiter.$verb(key).policy(op.policy).cost(op.cost).at(at);
            match op.id {
                Some(id) => request.id(id).await,
                None => request.await,
            }
        }};
    }
    match op.mode {
        Mode::Acquire => call!(acquire),
        Mode::Peek => call!(peek),
        Mode::Record => call!(record),
    }
}

/// Decides from the facts.
pub(super) async fn by_facts<S: WindowStore + ?Sized>(store: &S, op: Op<'_>) -> Result<Decision, Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    Ok(decide(&op, facts))
}

async fn at_once<S: WindowStore + ?Sized>(store: &S, op: Op<'_>) -> Result<Decision, Error> {
    match store.decide_at_once(op) {
        Some(decision) => decision,
        None => by_facts(store, op).await,
    }
}

fn story(plan: &Plan, wrong: usize, got: &Got) -> String {
    let mut story = String::new();
    for (i, (call, expected)) in plan.calls.iter().enumerate().take(wrong + 1) {
        story += &format!("{i:>3}. {}\n", plan.describe(call));
        if i == wrong {
            story += &format!("     expected {expected}\n     got      {got}");
        } else {
            story += &format!("     {expected}\n");
        }
    }
    story
}
