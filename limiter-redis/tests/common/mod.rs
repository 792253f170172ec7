//! What several tests need.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::time::Duration;

use limiter_core::store::{Mode, Op, decide};
use limiter_core::{Decision, Error, WindowStore};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::conformance::{Operation, Step};

/// Longer than anything takes on a busy test machine, for tests that are not about timeouts.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a builder whose timeouts a busy test machine does not reach.
pub(crate) fn builder() -> RedisStoreBuilder {
    RedisStore::builder().connect_timeout(TIMEOUT).response_timeout(TIMEOUT)
}

/// Connects to a URL with timeouts that a busy test machine does not reach.
pub(crate) async fn connect(url: &str) -> RedisStore {
    builder().connect(url).await.unwrap()
}

/// Applies an operation as it is. Without a limiter's policy, its own policy alone says what an append keeps.
pub(crate) async fn run(store: &impl WindowStore, op: Op<'_>) -> Result<Decision, Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    Ok(decide(&op, facts))
}

/// Returns the text of an error and of its sources, as a program prints them.
pub(crate) fn chain(error: &Error) -> String {
    let (mut text, mut source) = (error.to_string(), std::error::Error::source(error));
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// Lets each settlement use the receipt of an earlier acquire or record: of `n` receipts the one of its number modulo `n`.
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
