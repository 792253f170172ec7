//! Memory, Redis and the oracle, driven by the same random operations, agree in every field.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use limiter_memory::MemoryStore;
use limiter_testkit::conformance::{Plan, cases, replay, replay_blocking};
use limiter_testkit::server::Server;
use proptest::test_runner::TestCaseError;

mod common;

/// The number of sequences, `LIMITER_SEQUENCES`. Default: as many as a test has time for.
fn sequences() -> u32 {
    match std::env::var("LIMITER_SEQUENCES") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("LIMITER_SEQUENCES={text}: expected a number: {e}")),
        Err(_) => 2_000,
    }
}

#[test]
fn memory_redis_and_the_oracle_agree_in_every_field() {
    let server = Server::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Arc::new(runtime.block_on(common::connect(&server.url())));
    let memory = Arc::new(MemoryStore::new());

    let count = sequences();
    let tried = AtomicU32::new(0);
    // The plan holds the oracle's answers: stores that agree with it agree with each other.
    let result = common::runner(file!(), count).run(&cases(1..=40), |case| {
        let prefix = tried.fetch_add(1, Ordering::Relaxed).to_string();
        let plan = Plan::of(&case).map_err(TestCaseError::fail)?;
        replay_blocking(&memory, &plan, &prefix).map_err(|e| TestCaseError::fail(format!("memory: {e}")))?;
        runtime
            .block_on(replay(&redis, &plan, |key| format!("{prefix}/{key}").into_bytes()))
            .map_err(|e| TestCaseError::fail(format!("Redis: {e}")))
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    assert!(tried.into_inner() >= count);
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), 0, "every sequence ends with a reset of its keys");
}
