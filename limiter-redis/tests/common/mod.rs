//! What several tests need.

use limiter_core::store::{Op, decide};
use limiter_core::{Decision, Error, WindowStore};

/// Applies an operation as it is. Without a limiter's policy, its own policy alone says what an append keeps.
pub(crate) async fn run(store: &impl WindowStore, op: Op<'_>) -> Result<Decision, Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    Ok(decide(&op, facts))
}
