//! What several tests need.

use limiter_core::store::{Mode, Op, decide};
use limiter_core::{Decision, Error, WindowStore};
use limiter_testkit::conformance::{Operation, Step};

/// Applies an operation as it is. Without a limiter's policy, its own policy alone says what an append keeps.
pub(crate) async fn run(store: &impl WindowStore, op: Op<'_>) -> Result<Decision, Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    Ok(decide(&op, facts))
}

/// Lets each settlement use the receipt of an earlier acquire or record: of `n` receipts the one of its number modulo `n`.
#[allow(dead_code, reason = "not every test generates sequences")]
pub(crate) fn with_receipts(mut steps: Vec<Step>) -> Vec<Step> {
    let mut appends = Vec::new();
    for (number, step) in steps.iter_mut().enumerate() {
        match &mut step.operation {
            Operation::Settle { step, .. } => {
                *step = appends.get(*step % appends.len().max(1)).copied().unwrap_or(number);
            }
            Operation::Run { mode: Mode::Acquire | Mode::Record, .. } => appends.push(number),
            _ => {}
        }
    }
    steps
}
