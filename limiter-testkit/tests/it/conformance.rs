//! The suite passes its reference, and correct stores and wrappers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

use futures::executor::block_on;
use limiter_core::{BoxFuture, Clock, SharedStore, Timestamp, WithClock};
use limiter_testkit::conformance::Phase::{Cases, Contention, Golden, Handles, LongLog, Random};
use limiter_testkit::conformance::{Phase, Suite};
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
        Box::pin(futures_timer::Delay::new(duration))
    }
}

// The reference store rescans the log for every operation, so a very long log would take it minutes.
conformance_tests!(
    the_oracle,
    Suite::new().sizes(|sizes| (sizes.long_log, sizes.long_log_time) = (2_000, Duration::MAX)),
    async |suite| { suite.run(Arc::new(ReferenceStore::new())).await }
);
conformance_tests!(with_clock, Suite::slow(), async |suite| {
    suite
        .run(Arc::new(WithClock::new(
            ReferenceStore::new(),
            TickingClock::default(),
        )))
        .await
});
conformance_tests!(
    with_a_mock_clock,
    Suite::slow().own_epoch(),
    async |suite| {
        suite
            .run(Arc::new(WithClock::new(
                ReferenceStore::new(),
                MockClock::new().auto_advancing(),
            )))
            .await
    }
);
conformance_tests!(
    on_a_runtime,
    tokio,
    Suite::shared().sweep(|| Box::pin(async {})),
    async |suite| {
        let handles = handles();
        let late = handles[0].clone();
        suite.run_handles(handles, async { late }).await
    },
    handles
);

#[test]
fn a_report_counts_every_check() {
    let report = Suite::slow().run_blocking(reference()).unwrap();
    let checks = [Random, LongLog, Golden, Cases, Contention].map(|phase| report.checks_of(phase));
    assert_eq!(checks[..2], [150, 1_100]);
    assert!(
        checks[2] == 16 && checks[3] > 300 && checks[4] > 1_000,
        "{report:?}"
    );
    assert_eq!(
        report.calls,
        Phase::ALL
            .iter()
            .map(|phase| report.calls_of(*phase))
            .sum::<u64>()
    );
    assert_eq!(report.calls_of(Handles), 0);
}

#[test]
fn a_seed_repeats_the_random_sequences() {
    let run = |seed| {
        let suite = Suite::new()
            .seed(seed)
            .sizes(|sizes| sizes.sequences = 50)
            .phases(&[Phase::Random]);
        suite.run_blocking(reference()).unwrap().calls
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_seed_selects_other_short_sequences() {
    let count = |seed| {
        let suite = Suite::slow().seed(seed).phases(&[Phase::Exhaustive]);
        suite
            .run_blocking(reference())
            .unwrap()
            .checks_of(Phase::Exhaustive)
    };
    let all = Suite::new()
        .phases(&[Phase::Exhaustive])
        .run_blocking(reference())
        .unwrap()
        .checks_of(Phase::Exhaustive);
    assert!((0..6).map(count).sum::<u64>() == all, "{all}");
}

#[test]
fn a_run_removes_all_its_logs() {
    let store = Arc::new(ReferenceStore::new());
    let handle = || Arc::clone(&store);
    let _ =
        block_on(Suite::slow().run_handles(vec![handle(), handle()], async { handle() })).unwrap();
    assert_eq!(format!("{store:?}").matches("ReferenceEntry").count(), 0);
}

/// A task may be lost if its runtime stops.
#[test]
fn a_lost_task_is_a_failure() {
    let suite = Suite::new().phases(&[Phase::Contention]).spawn(|task| {
        drop(task);
        Box::pin(async {})
    });
    let failure = suite.run_blocking(reference()).unwrap_err();
    assert!(
        failure.to_string().contains("0 of 104 turns ended"),
        "{failure}"
    );
}

#[test]
fn a_suite_that_runs_nothing_fails() {
    for (suite, phase) in [
        (
            Suite::new().sizes(|sizes| sizes.sequences = 0),
            Phase::Random,
        ),
        (
            Suite::new().sizes(|sizes| sizes.depth = 0),
            Phase::Exhaustive,
        ),
        (
            Suite::new().sizes(|sizes| sizes.rounds = 0),
            Phase::Contention,
        ),
        (Suite::new(), Phase::Handles),
    ] {
        let failure = suite
            .phases(&[phase])
            .run_blocking(reference())
            .unwrap_err();
        assert_eq!(failure.phase(), phase);
        assert!(
            failure.to_string().contains("nothing was checked"),
            "{failure}"
        );
    }
}
