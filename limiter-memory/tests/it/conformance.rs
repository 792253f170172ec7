//! The memory store does what every store must do.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::{BoxFuture, Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::conformance::{Phase, Sizes, Suite, cases, replay_blocking};
use limiter_testkit::conformance_tests;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

/// Whether the tests run in full.
fn test_all() -> bool {
    std::env::var_os("LIMITER_TEST_ALL").is_some()
}

/// `LIMITER_SEQUENCES` of them. Default: 4,000, or 20,000 with `LIMITER_TEST_ALL`.
fn sequences() -> u32 {
    match std::env::var("LIMITER_SEQUENCES") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("LIMITER_SEQUENCES={text}: expected a number: {e}")),
        Err(_) if test_all() => 20_000,
        Err(_) => 4_000,
    }
}

conformance_tests!(
    the_store,
    Suite::new(),
    async |suite| {
        let store = Arc::new(MemoryStore::new());
        let sweeper = Arc::clone(&store);
        let sweep = move || -> BoxFuture<'static, ()> {
            sweeper.sweep();
            Box::pin(async {})
        };
        let handle = || Arc::new(Arc::clone(&store));
        suite
            .sweep(sweep)
            .run_handles(vec![handle(), handle(), handle()], async { handle() })
            .await
    },
    handles
);

#[test]
fn every_sequence_of_three_conforms() {
    let suite = Suite::new()
        .sizes(|sizes| sizes.depth = 3)
        .phases(&[Phase::Exhaustive]);
    let report = suite.run_blocking(Arc::new(MemoryStore::new())).unwrap();
    assert_eq!(report.checks_of(Phase::Exhaustive), 279_328);
}

#[test]
fn many_tasks_on_a_key_conform() {
    for tasks in [2, 4, 8] {
        let size = |sizes: &mut Sizes| {
            (sizes.tasks, sizes.tries, sizes.rounds) = (tasks, 2_000 / tasks, 2);
        };
        let suite = Suite::new().sizes(size).phases(&[Phase::Contention]);
        let report = suite.run_blocking(Arc::new(MemoryStore::new())).unwrap();
        assert!(
            report.checks_of(Phase::Contention) >= 5 * 5 * 2_000,
            "{report:?}"
        );
    }
}

#[test]
fn random_sequences_agree_with_the_oracle() {
    agree_with_the_oracle(sequences(), 1..=40, 0);
}

#[test]
fn long_random_sequences_agree_with_the_oracle() {
    agree_with_the_oracle(sequences() / 20, 100..=400, 0);
}

#[test]
fn random_sequences_beside_other_keys_agree_with_the_oracle() {
    for others in [5_000, 20_000] {
        agree_with_the_oracle(sequences() / 4, 1..=40, others);
    }
}

fn agree_with_the_oracle(count: u32, steps: RangeInclusive<usize>, others: u32) {
    let store = Arc::new(MemoryStore::new());
    let limiter = Limiter::new("others", policy!("1/1h"), Arc::clone(&store));
    for other in 0..others {
        assert!(
            limiter
                .acquire(other.to_le_bytes())
                .now()
                .unwrap()
                .is_allowed()
        );
    }
    let tried = AtomicU64::new(0);
    let mut runner = TestRunner::new(Config {
        cases: count,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    });
    let result = runner.run(&cases(steps), |case| {
        let prefix = tried.fetch_add(1, Ordering::Relaxed).to_string();
        replay_blocking(&store, &case, &prefix)
            .map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    assert!(tried.into_inner() >= u64::from(count));
    assert_eq!(
        store.len(),
        others as usize,
        "every sequence ends with a reset of its keys"
    );
}
