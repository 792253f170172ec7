//! The suite agrees with the oracle that it is made from, and counts what it ran.

use std::sync::Arc;

use limiter_core::DynWindowStore;
use limiter_testkit::OracleStore;
use limiter_testkit::conformance::{Phase, Suite};

#[test]
fn the_oracle_conforms() {
    let report = Suite::new().sequences(500).run_blocking(Arc::new(OracleStore::new())).unwrap();
    assert_eq!(report.random_sequences, 500);
    assert!(report.golden_rows >= 100, "{report:?}");
    assert!(report.short_sequences >= 3_000, "{report:?}");
    assert!(report.contended >= 5_000, "{report:?}");
}

#[test]
fn the_oracle_conforms_behind_its_object_safe_twin() {
    let store: Arc<dyn DynWindowStore> = Arc::new(OracleStore::new());
    let report = Suite::new().sequences(100).run_blocking(store).unwrap();
    assert_eq!(report.random_sequences, 100);
}

#[tokio::test]
async fn the_suite_runs_on_a_runtime() {
    let suite = Suite::new().sequences(20).spawn(|task| Box::pin(async { _ = tokio::spawn(task).await }));
    let report = tokio::spawn(async move { suite.run(Arc::new(OracleStore::new())).await }).await.unwrap().unwrap();
    assert!(report.contended >= 5_000, "{report:?}");
}

#[test]
fn a_seed_repeats_the_random_sequences() {
    let run = |seed| {
        let suite = Suite::new().seed(seed).sequences(50).phases(&[Phase::Random]);
        suite.run_blocking(Arc::new(OracleStore::new())).unwrap().operations
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// As a task on the thread of another runtime would.
#[test]
fn a_task_that_is_lost_is_a_failure() {
    let suite = Suite::new().phases(&[Phase::Contention]).spawn(|task| {
        drop(task);
        Box::pin(async {})
    });
    let failure = suite.run_blocking(Arc::new(OracleStore::new())).unwrap_err();
    assert!(failure.to_string().contains("0 of 400 operations were made"), "{failure}");
}
