//! Waiting with `within` until an acquire fits.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
#[cfg(feature = "tokio")]
use std::time::{Instant, SystemTime};

use crate::slow_store::SlowStore;
use futures::executor::block_on;
use futures::future::join_all;
use limiter_core::{
    Clock, Counting, Error, ErrorKind, Limiter, Policy, Timestamp, WindowStore, WithClock, policy,
};
use limiter_testkit::{MockClock, ReferenceStore};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);

fn limiter(policy: Policy, clock: &MockClock) -> Limiter<WithClock<ReferenceStore, MockClock>> {
    let store = WithClock::new(ReferenceStore::new(), clock.clone());
    Limiter::new("search", policy, store)
}

/// Whether an acquire that waits is admitted.
async fn within<S: WindowStore>(limiter: &Limiter<S>, wait: Duration) -> Result<bool, Error> {
    let decision = limiter.acquire("k").within(wait).await?;
    Ok(decision.is_allowed())
}

#[test]
fn it_waits_until_the_acquire_fits_and_not_if_it_cannot_in_time() {
    async fn check<S: WindowStore>(limiter: Limiter<S>, clock: MockClock) {
        let start = clock.now();
        let passed = || clock.now().micros_since(start);
        for _ in 0..2 {
            assert!(within(&limiter, SECOND).await.unwrap());
        }
        assert_eq!(passed(), 0);
        assert!(!within(&limiter, SECOND - MICRO).await.unwrap());
        assert_eq!(passed(), 0);
        let patient = limiter.acquire("k").cost(2).within(SECOND).await.unwrap();
        assert_eq!((patient.is_allowed(), passed()), (true, 1_000_000));
    }
    let clock = MockClock::new().auto_advancing();
    block_on(check(limiter(policy!("2/1s"), &clock), clock));
    let clock = MockClock::new().auto_advancing();
    let slow = WithClock::new(SlowStore::default(), clock.clone());
    block_on(check(Limiter::new("search", policy!("2/1s"), slow), clock));
}

#[test]
fn without_a_timer_a_call_that_may_wait_fails_before_it_is_made() {
    let limiter = Limiter::new("search", policy!("1/1h"), SlowStore::default());
    for wait in [Duration::from_nanos(1), SECOND, Duration::MAX] {
        let error = block_on(within(&limiter, wait)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        let text = error.to_string();
        assert!(text.contains("waiting needs a timer"), "{text}");
    }
    for allowed in [true, false] {
        assert_eq!(block_on(within(&limiter, Duration::ZERO)).unwrap(), allowed);
        let given = limiter.acquire("given").at(Timestamp::EPOCH);
        let given = block_on(given.within(SECOND)).unwrap();
        assert_eq!(given.is_allowed(), allowed);
    }
}

#[test]
fn where_attempts_count_a_call_that_waits_counts_once() {
    let clock = MockClock::new().auto_advancing();
    let attempts = policy!("16/1s, 99/1h").with_counting(Counting::Attempts);
    let limiter = limiter(attempts, &clock);
    let used = || limiter.status("k").now().unwrap().limits()[1].used();
    assert!(limiter.acquire("k").cost(16).now().unwrap().is_allowed());
    let start = clock.now();
    // Neither a wait that is too short nor a call at a given time waits, and each is one attempt.
    let soon = limiter.acquire("k").within(SECOND - MICRO);
    let given = limiter.acquire("k").at(start).within(Duration::MAX);
    for denied in [block_on(soon), block_on(given)] {
        assert!(!denied.unwrap().is_allowed());
    }
    assert_eq!((used(), clock.now()), (18, start));
    let waiting = |id: u128| limiter.acquire("k").idempotency_key(id).within(SECOND);
    let six = block_on(join_all((0..6).map(waiting)));
    assert!(
        six.iter()
            .all(|decision| decision.as_ref().unwrap().is_allowed())
    );
    assert_eq!((used(), clock.now().micros_since(start)), (24, 1_000_000));
}

#[test]
fn a_waiter_that_is_dropped_has_consumed_nothing() {
    let clock = MockClock::new();
    let limiter = limiter(policy!("1/1s"), &clock);
    assert!(limiter.acquire("k").now().unwrap().is_allowed());
    {
        let mut waiting = pin!(within(&limiter, SECOND));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(clock.sleepers(), 1);
    }
    clock.advance(SECOND);
    assert_eq!(clock.sleepers(), 0);
    assert_eq!(limiter.status("k").now().unwrap().used(), 0);
}

#[cfg(feature = "tokio")]
fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap()
}

#[test]
#[cfg(feature = "tokio")]
fn in_a_tokio_runtime_tokio_is_the_timer() {
    let limiter = Limiter::new("search", policy!("1/20ms"), SlowStore::default());
    runtime().block_on(async {
        let start = Instant::now();
        for _ in 0..3 {
            assert!(within(&limiter, 20 * SECOND).await.unwrap());
        }
        assert!(start.elapsed() >= Duration::from_millis(40));
    });
}

/// A clock that stepped back leaves entries in its future, which hold up the log's time.
#[test]
#[cfg(feature = "tokio")]
fn a_wait_that_an_entry_ahead_of_the_clock_makes_too_long_does_not_begin() {
    const HOUR: Duration = Duration::from_secs(3600);
    let wait = Duration::from_millis(200);
    let plain = Limiter::new("n", policy!("1/90ms"), ReferenceStore::new());
    let now = Timestamp::try_from(SystemTime::now()).unwrap();
    let ahead = plain.acquire("k").at(now.saturating_add(HOUR)).now();
    assert!(ahead.unwrap().is_allowed());
    assert!(!runtime().block_on(within(&plain, wait)).unwrap());
    // The same holds with a clock in front of the store.
    let clock = MockClock::new().auto_advancing();
    let limiter = limiter(policy!("1/90ms"), &clock);
    let start = clock.now();
    let ahead = limiter.acquire("k").at(start.saturating_add(HOUR)).now();
    assert!(ahead.unwrap().is_allowed());
    let denied = block_on(limiter.acquire("k").within(wait)).unwrap();
    assert_eq!(denied.clock_behind(), HOUR);
    assert_eq!(clock.now(), start);
    // The wait is true: the clock passes the entry, and then the entry leaves the window.
    let retry = denied.retry_after().unwrap();
    assert_eq!(retry, HOUR + Duration::from_millis(90));
    assert_eq!([denied.refill_after(), denied.reset_after()], [retry; 2]);
    for (passed, allowed) in [(retry - MICRO, false), (MICRO, true)] {
        clock.advance(passed);
        let decision = limiter.acquire("k").now().unwrap();
        assert_eq!(decision.is_allowed(), allowed);
    }
}
