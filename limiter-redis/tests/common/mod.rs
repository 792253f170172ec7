//! What several tests need.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use limiter_core::store::{LogKey, Mode, Op, decide};
use limiter_core::{Decision, Error, Name, WindowStore, policy};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::conformance::{Case, Operation, Plan, Step, replay};
use limiter_testkit::server::Server;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

/// Longer than anything takes on a busy test machine, for tests that are not about timeouts.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a builder whose timeouts a busy test machine does not reach.
pub(crate) fn builder() -> RedisStoreBuilder {
    RedisStore::builder().connect_timeout(TIMEOUT).response_timeout(TIMEOUT)
}

/// Connects to a URL with timeouts that a busy test machine does not reach.
pub(crate) async fn connect(url: &str) -> RedisStore {
    builder().connect(url).await.unwrap()
}

/// Connects with group commit to a server that knows its scripts. While a script is loaded, its call falls behind later ones.
pub(crate) async fn connect_with_group_commit(url: &str) -> RedisStore {
    let store = builder().group_commit(true).connect(url).await.unwrap();
    let policy = policy!("1000/1h");
    for done in join_all((0..3).map(|_| run(&store, Op::acquire("warm", &policy)))).await {
        assert!(done.unwrap().allowed());
    }
    store.reset(LogKey::new(Name::default(), "warm")).await.unwrap();
    store
}

/// Returns the output of a future that must not hang.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("a future hangs")
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

/// Returns a function that makes a random number below its argument. The same seed makes the same numbers.
pub(crate) fn random_below(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = seed;
    move |end| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    }
}

/// Returns a runner of property tests, which keeps failures in a file beside the test's own `file`.
pub(crate) fn runner(file: &'static str, cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        source_file: Some(file),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    })
}

/// Replays what `cases_of` makes of each generated value on Redis, and compares with the oracle in every field.
pub(crate) fn agree_with_the_oracle<S: Strategy>(
    file: &'static str,
    count: u32,
    values: &S,
    cases_of: impl Fn(S::Value) -> Vec<Case>,
) {
    let server = Server::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Arc::new(runtime.block_on(connect(&server.url())));
    let tried = Cell::new(0);
    let result = runner(file, count).run(values, |value| {
        tried.set(tried.get() + 1);
        for (number, case) in cases_of(value).iter().enumerate() {
            let prefix = format!("{}/{number}", tried.get());
            let plan = Plan::of(case).map_err(TestCaseError::fail)?;
            let done = runtime.block_on(replay(&store, &plan, |key| format!("{prefix}/{key}").into_bytes()));
            done.map_err(|e| TestCaseError::fail(format!("case {number}: {e}")))?;
        }
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    assert!(tried.get() >= count);
}
