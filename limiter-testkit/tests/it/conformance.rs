//! The suite passes its reference, and correct stores and wrappers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

use limiter_core::{BoxFuture, Clock, SharedStore, Timestamp, WithClock};
use limiter_testkit::conformance::__private::block_on;
use limiter_testkit::conformance::Phase::{Forgetting, Handles, Random};
use limiter_testkit::conformance::{Failure, Report, Suite};
use limiter_testkit::{MockClock, ReferenceStore, conformance_tests};

fn reference() -> SharedStore {
    Arc::new(ReferenceStore::new())
}

/// A generated test has the same name.
fn handles() -> Vec<SharedStore> {
    vec![reference(); 3]
}

/// The system clock, for `WithClock`. No two readings are equal.
#[derive(Debug, Default)]
struct TickingClock(AtomicU64);

impl Clock for TickingClock {
    fn now(&self) -> Timestamp {
        let now = Timestamp::try_from(SystemTime::now()).unwrap().as_micros();
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.0.fetch_update(SeqCst, SeqCst, next).unwrap();
        Timestamp::from_micros_saturating(now.max(last + 1))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

async fn with_clock(suite: Suite, clock: impl Clock + 'static) -> Result<Report, Failure> {
    let store = WithClock::new(ReferenceStore::new(), clock);
    suite.run(Arc::new(store)).await
}

// The reference store rescans the log for every operation, so a very long log would take it minutes.
conformance_tests!(
    the_reference,
    Suite::new().sizes(|sizes| (sizes.long_log, sizes.long_log_time) = (2_000, Duration::MAX)),
    async |suite| { suite.run(reference()).await }
);
conformance_tests!(a_ticking_clock, Suite::slow(), async |suite| {
    with_clock(suite, TickingClock::default()).await
});
conformance_tests!(a_mock_clock, Suite::slow().own_epoch(), async |suite| {
    with_clock(suite, MockClock::new().auto_advancing()).await
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

/// On one handle, without a sweep. How often the phase of forgetting calls the store depends on the machine.
#[test]
fn the_readme_states_how_many_calls_a_suite_makes() {
    let readme = include_str!("../../README.md");
    for (preset, suite) in [("slow", Suite::slow()), ("shared", Suite::shared())] {
        let row = format!("| `Suite::{preset}` |");
        let row = readme.lines().find(|line| line.starts_with(&row)).unwrap();
        let (_, stated) = row.split_once("about ").unwrap();
        let (_, stated) = stated.rsplit_once("about ").unwrap_or(("", stated));
        let stated: u64 = stated
            .replace(',', "")
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let report = suite.seed(1).run_blocking(reference()).unwrap();
        let calls = report.calls - report.calls_of(Forgetting);
        assert!(calls.abs_diff(stated) < stated / 10, "{preset}: {calls}");
    }
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
