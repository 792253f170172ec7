//! The suite passes its reference, and correct stores and wrappers.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{SharedStore, WithClock};
use limiter_testkit::conformance::__private::block_on;
use limiter_testkit::conformance::Phase::{Handles, Random};
use limiter_testkit::conformance::Suite;
use limiter_testkit::{MockClock, ReferenceStore, conformance_tests};

fn reference() -> SharedStore {
    Arc::new(ReferenceStore::new())
}

/// A generated test has the same name.
fn handles() -> Vec<SharedStore> {
    vec![reference(); 3]
}

// The reference store rescans the log for every operation, so a very long log would take it minutes.
conformance_tests!(
    the_reference,
    Suite::new().sizes(|sizes| (sizes.long_log, sizes.long_log_time) = (2_000, Duration::MAX)),
    async |suite| { suite.run(reference()).await }
);
conformance_tests!(a_mock_clock, Suite::slow().own_epoch(), async |suite| {
    let clock = MockClock::new().auto_advancing();
    suite
        .run(Arc::new(WithClock::new(ReferenceStore::new(), clock)))
        .await
});
conformance_tests!(
    on_a_runtime,
    Suite::shared().sweep(|| Box::pin(async {})),
    async |suite| {
        let handles = handles();
        let late = handles[0].clone();
        suite.run_handles(handles, async { late }).await
    },
    handles
);

#[test]
fn a_seed_repeats_the_random_sequences() {
    let calls = |seed| {
        let suite = Suite::slow().seed(seed).phases(&[Random]);
        suite.run_blocking(reference()).unwrap().calls
    };
    assert_eq!(calls(1), calls(1));
    assert_ne!(calls(1), calls(2));
}

#[test]
fn a_run_removes_all_its_logs() {
    let store = Arc::new(ReferenceStore::new());
    let handle = || Arc::clone(&store);
    let handles = vec![handle(), handle()];
    let report = block_on(Suite::slow().run_handles(handles, async { handle() }));
    assert!(report.unwrap().calls_of(Handles) > 0);
    assert_eq!(format!("{store:?}").matches("ReferenceEntry").count(), 0);
}

#[test]
fn a_suite_that_runs_nothing_is_a_failure() {
    let idle = Suite::new().sizes(|sizes| sizes.sequences = 0);
    for (suite, text) in [
        (idle.phases(&[Random]), "nothing was checked"),
        (Suite::new().phases(&[Handles]), "nothing was checked"),
    ] {
        let failure = suite.run_blocking(reference()).unwrap_err().to_string();
        assert!(failure.contains(text), "{failure}");
    }
}
