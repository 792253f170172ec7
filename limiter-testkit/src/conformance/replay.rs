//! A plan, put to a store.

use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use limiter_core::{At, Decision, Error, Limiter, Op, Policy, Receipt, Settlement, WindowStore, decide};

use super::plan::{Call, Expected, Plan};
use crate::Answer;

/// Where a store's answer is not what it must be. [`Display`](fmt::Display) tells the whole story.
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

/// What a store said.
enum Got {
    Said(Expected),
    Failed(Error),
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(said) => said.fmt(f),
            Self::Failed(error) => write!(f, "the error {error:?}"),
        }
    }
}

/// Puts the calls of `plan` to the store of `limiter`, one after another, and compares every field of every answer. The
/// case's key `k` becomes the store's key `keys(k)`, which must be new.
///
/// Stores name entries differently: what is compared of a receipt is whether there is one, its time and its window.
///
/// # Errors
/// The first [`Mismatch`].
pub async fn replay<S>(limiter: &Limiter<Arc<S>>, plan: &Plan, keys: impl Fn(u8) -> Vec<u8>) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let mut receipts: Vec<Option<Receipt>> = vec![None; plan.calls.len()];
    for (i, (call, expected)) in plan.calls.iter().enumerate() {
        let got = put(limiter, plan, call, &keys, (i, &mut receipts)).await;
        let agrees = match (&got, expected) {
            (Got::Said(said), expected) => said == expected,
            (Got::Failed(error), Expected::Refused(kind)) => error.kind() == *kind,
            (Got::Failed(_), _) => false,
        };
        if !agrees {
            return Err(Mismatch { call: i, story: tell(plan, i, &got) });
        }
    }
    Ok(())
}

/// [`replay`] for a store that needs no runtime, on keys of its own that begin with `prefix`.
///
/// # Errors
/// As [`replay`].
pub fn replay_blocking<S>(limiter: &Limiter<Arc<S>>, plan: &Plan, prefix: &str) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    futures::executor::block_on(replay(limiter, plan, |key| format!("{prefix}/{key}").into_bytes()))
}

async fn put<S>(
    limiter: &Limiter<Arc<S>>,
    plan: &Plan,
    call: &Call,
    keys: impl Fn(u8) -> Vec<u8>,
    (i, receipts): (usize, &mut [Option<Receipt>]),
) -> Got
where
    S: WindowStore + ?Sized,
{
    let changed = match *call {
        Call::Run { mode, key, policy, cost, id, at } => {
            let (key, policy): (_, &Policy) = (keys(key), &plan.policies[policy]);
            let mut op = Op::new(mode, &key, policy).cost(cost);
            (op.id, op.at) = (id, At::Given(at));
            let store = &**limiter.store();
            // In turns: a store may have a way of its own to each.
            let decision = match i % 3 {
                0 => limiter.run(op).await,
                1 => by_facts(store, op).await,
                _ => at_once(store, op).await,
            };
            return match decision {
                Ok(decision) => {
                    receipts[i] = decision.receipt();
                    Got::Said(Expected::Answer(Box::new(Answer::from(&decision))))
                }
                Err(error) => Got::Failed(error),
            };
        }
        Call::Settle { key, issued_by, cost, at } => {
            let Some(receipt) = receipts[issued_by] else { return Got::Said(Expected::Changed(false)) };
            let key = keys(key);
            limiter.store().settle(Settlement::new(&key, receipt, cost).at(at)).await
        }
        Call::Reset { key } => limiter.store().reset(&keys(key)).await,
    };
    changed.map_or_else(Got::Failed, |changed| Got::Said(Expected::Changed(changed)))
}

async fn by_facts<S: WindowStore + ?Sized>(store: &S, op: Op<'_>) -> Result<Decision, Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    Ok(decide(&op, &facts))
}

async fn at_once<S: WindowStore + ?Sized>(store: &S, mut op: Op<'_>) -> Result<Decision, Error> {
    match store.decide_at_once(&mut op) {
        Poll::Ready(decision) => decision,
        Poll::Pending => store.decide(op).await,
    }
}

fn tell(plan: &Plan, wrong: usize, got: &Got) -> String {
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
