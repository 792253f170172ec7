//! Waiting with `within` until an acquire fits.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::slow_store::SlowStore;
use futures::executor::block_on;
use limiter_core::{
    BoxFuture, Clock, Counting, ErrorKind, Limiter, Timestamp, WindowStore, WithClock, policy,
};
use limiter_testkit::{MockClock, ReferenceStore};

const SECOND: Duration = Duration::from_secs(1);

/// A clock of real time that records each requested sleep, and blocks the thread.
#[derive(Clone, Debug, Default)]
struct ThreadClock(Arc<Mutex<Vec<Duration>>>);

impl Clock for ThreadClock {
    fn now(&self) -> Timestamp {
        Timestamp::try_from(SystemTime::now()).unwrap()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().push(duration);
        Box::pin(async move { thread::sleep(duration) })
    }
}

#[test]
fn it_waits_until_the_acquire_fits_and_not_if_it_cannot_in_time() {
    async fn check<S: WindowStore>(limiter: Limiter<S>, clock: MockClock) {
        let start = clock.now();
        let passed = || clock.now().micros_since(start);
        for _ in 0..2 {
            assert!(
                limiter
                    .acquire("k")
                    .within(SECOND)
                    .await
                    .unwrap()
                    .is_allowed()
            );
        }
        assert_eq!(passed(), 0);
        let impatient = limiter
            .acquire("k")
            .within(SECOND - Duration::from_micros(1))
            .await
            .unwrap();
        assert_eq!((impatient.is_allowed(), passed()), (false, 0));
        let patient = limiter.acquire("k").cost(2).within(SECOND).await.unwrap();
        assert_eq!((patient.is_allowed(), passed()), (true, 1_000_000));
    }
    let clock = MockClock::new().auto_advancing();
    let at_once = WithClock::new(ReferenceStore::new(), clock.clone());
    block_on(check(
        Limiter::new("search", policy!("2/1s"), at_once),
        clock,
    ));
    let clock = MockClock::new().auto_advancing();
    let slow = WithClock::new(SlowStore::default(), clock.clone());
    block_on(check(Limiter::new("search", policy!("2/1s"), slow), clock));
}

#[test]
fn without_a_timer_a_call_that_may_wait_fails_before_it_is_made() {
    let limiter = Limiter::new("search", policy!("1/1h"), SlowStore::default());
    for wait in [Duration::from_nanos(1), SECOND, Duration::MAX] {
        let error = block_on(limiter.acquire("k").within(wait)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(
            error.to_string().contains("waiting needs a timer"),
            "{error}"
        );
    }
    for allowed in [true, false] {
        assert_eq!(
            block_on(limiter.acquire("k").within(Duration::ZERO))
                .unwrap()
                .is_allowed(),
            allowed
        );
        let at = limiter_core::Timestamp::from_micros(1).unwrap();
        assert_eq!(
            block_on(limiter.acquire("given").at(at).within(SECOND))
                .unwrap()
                .is_allowed(),
            allowed
        );
    }
}

#[test]
fn the_clock_in_front_of_the_store_sleeps() {
    let clock = ThreadClock::default();
    let with_clock = WithClock::new(ReferenceStore::new(), clock.clone());
    let limiter = Limiter::new("search", policy!("1/20ms"), with_clock);
    for _ in 0..2 {
        assert!(
            block_on(limiter.acquire("k").within(SECOND))
                .unwrap()
                .is_allowed()
        );
    }
    let slept = clock.0.lock().unwrap();
    assert!(
        !slept.is_empty() && slept.iter().all(|wait| *wait <= Duration::from_millis(20)),
        "{slept:?}"
    );
}

#[test]
fn an_acquire_at_a_given_time_or_denied_under_its_id_is_tried_once() {
    let clock = MockClock::new().auto_advancing();
    let attempts = policy!("1/1s, 9/1h").with_counting(Counting::Attempts);
    let limiter = Limiter::new(
        "search",
        attempts,
        WithClock::new(ReferenceStore::new(), clock.clone()),
    );
    let start = clock.now();
    assert!(limiter.acquire("k").now().unwrap().is_allowed());
    assert!(
        !block_on(limiter.acquire("k").at(start).within(Duration::MAX))
            .unwrap()
            .is_allowed()
    );
    // The first try is in the log under this id, so a second try would only repeat the verdict.
    assert!(
        !block_on(
            limiter
                .acquire("k")
                .idempotency_key(7)
                .within(Duration::MAX)
        )
        .unwrap()
        .is_allowed()
    );
    assert_eq!(clock.now().micros_since(start), 1_000_000);
}

#[test]
fn a_waiter_that_is_dropped_has_consumed_nothing() {
    let clock = MockClock::new();
    let limiter = Limiter::new(
        "search",
        policy!("1/1s"),
        WithClock::new(ReferenceStore::new(), clock.clone()),
    );
    assert!(limiter.acquire("k").now().unwrap().is_allowed());
    {
        let mut waiting = pin!(limiter.acquire("k").within(SECOND));
        assert!(matches!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop())),
            Poll::Pending
        ));
        assert_eq!(clock.sleepers(), 1);
    }
    clock.advance(SECOND);
    assert_eq!(
        (clock.sleepers(), limiter.status("k").now().unwrap().used()),
        (0, 0)
    );
}

#[test]
#[cfg(feature = "tokio")]
fn in_a_tokio_runtime_tokio_is_the_timer() {
    let limiter = Limiter::new("search", policy!("1/20ms"), SlowStore::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let start = Instant::now();
        for _ in 0..3 {
            assert!(
                limiter
                    .acquire("k")
                    .within(20 * SECOND)
                    .await
                    .unwrap()
                    .is_allowed()
            );
        }
        assert!(start.elapsed() >= Duration::from_millis(40));
    });
}

/// A clock that stepped back leaves entries in its future, which hold up the log's time.
#[test]
#[cfg(feature = "tokio")]
fn a_wait_that_an_entry_ahead_of_the_clock_makes_too_long_does_not_begin() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let wait = Duration::from_millis(200);
    let limiter = Limiter::new("n", policy!("1/90ms"), ReferenceStore::new());
    let ahead = Timestamp::try_from(SystemTime::now())
        .unwrap()
        .saturating_add(3600 * SECOND);
    assert!(limiter.acquire("k").at(ahead).now().unwrap().is_allowed());
    assert!(
        !runtime
            .block_on(limiter.acquire("k").within(wait))
            .unwrap()
            .is_allowed()
    );
    // The same holds with a clock in front of the store.
    let clock = MockClock::new().auto_advancing();
    let limiter = Limiter::new(
        "n",
        policy!("1/90ms"),
        WithClock::new(ReferenceStore::new(), clock.clone()),
    );
    assert!(
        limiter
            .acquire("k")
            .at(clock.now().saturating_add(3600 * SECOND))
            .now()
            .unwrap()
            .is_allowed()
    );
    let start = clock.now();
    let denied = block_on(limiter.acquire("k").within(wait)).unwrap();
    assert_eq!(denied.clock_behind(), 3600 * SECOND);
    assert_eq!(clock.now(), start);
    // The wait is true: the clock passes the entry, and then the entry leaves the window.
    let retry = denied.retry_after().unwrap();
    assert_eq!(retry, 3600 * SECOND + Duration::from_millis(90));
    assert_eq!(
        (denied.refill_after(), denied.reset_after()),
        (retry, retry)
    );
    clock.advance(retry - Duration::from_micros(1));
    assert!(!limiter.acquire("k").now().unwrap().is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.acquire("k").now().unwrap().is_allowed());
}
