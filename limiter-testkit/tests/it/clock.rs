//! Tests of the mock clock, which makes waiting take no time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::executor::block_on;
use limiter_core::{Clock, Limiter, Timestamp, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

#[test]
fn clones_share_their_time() {
    let clock = MockClock::new();
    let other = clock.clone();
    clock.set(time(10));
    other.advance(5 * MICRO);
    assert_eq!(clock.now(), time(15));
    other.set(time(8));
    assert_eq!(clock.now(), time(8));
}

#[test]
fn time_saturates() {
    let clock = MockClock::new();
    clock.advance(Duration::MAX);
    assert_eq!(clock.now(), Timestamp::MAX);
}

#[test]
fn a_sleep_ends_exactly_when_the_clock_reaches_its_end() {
    let clock = MockClock::new();
    let mut sleep = pin!(clock.sleep(SECOND));
    block_on(poll_fn(|context| {
        assert_eq!(sleep.as_mut().poll(context), Poll::Pending);
        assert_eq!(clock.sleepers(), 1);
        clock.advance(SECOND - MICRO);
        assert_eq!(sleep.as_mut().poll(context), Poll::Pending);
        {
            let mut dropped = pin!(clock.sleep(SECOND));
            assert_eq!(dropped.as_mut().poll(context), Poll::Pending);
            assert_eq!(clock.sleepers(), 2);
        }
        assert_eq!(clock.sleepers(), 1);
        clock.advance(MICRO);
        sleep.as_mut().poll(context)
    }));
}

#[test]
fn advancing_wakes_a_sleeping_thread() {
    let clock = MockClock::new();
    let sleeper = clock.clone();
    let thread = std::thread::spawn(move || block_on(sleeper.sleep(SECOND)));
    while clock.sleepers() == 0 {
        std::thread::yield_now();
    }
    clock.advance(SECOND);
    thread.join().unwrap();
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn a_waiting_acquire_waits_exactly_as_long_as_needed() {
    let clock = MockClock::new().auto_advancing();
    let limiter = Limiter::new(
        "search",
        policy!("2/1s"),
        WithClock::new(ReferenceStore::new(), clock.clone()),
    );
    let start = clock.now();
    let at = |decision: limiter_core::Decision| {
        (decision.is_allowed(), decision.at().micros_since(start))
    };
    let next = || at(block_on(limiter.acquire("key").within(10 * SECOND)).unwrap());
    assert_eq!(
        [next(), next(), next(), next(), next()].map(|(allowed, _)| allowed),
        [true; 5]
    );
    assert_eq!(clock.now().micros_since(start), 2_000_000);
    let impatient = at(block_on(limiter.acquire("key").within(SECOND / 2)).unwrap());
    assert_eq!(impatient, (true, 2_000_000));
    let denied = at(block_on(limiter.acquire("key").within(SECOND / 2)).unwrap());
    assert_eq!(denied, (false, 2_000_000));
    let patient = at(block_on(limiter.acquire("key").within(SECOND)).unwrap());
    assert_eq!(patient, (true, 3_000_000));
}
