//! Tests of the mock clock, which makes waiting take no time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::executor::block_on;
use limiter_core::{Clock, Timestamp};
use limiter_testkit::MockClock;

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);

#[test]
fn clones_share_their_time_which_saturates() {
    let (clock, time) = (MockClock::new(), |micros| {
        Timestamp::from_micros(micros).unwrap()
    });
    let other = clock.clone();
    clock.set(time(10));
    other.advance(5 * MICRO);
    assert_eq!(clock.now(), time(15));
    other.set(time(8));
    assert_eq!(clock.now(), time(8));
    clock.advance(Duration::MAX);
    assert_eq!(clock.now(), Timestamp::MAX);
}

#[test]
fn a_sleep_ends_exactly_when_the_clock_reaches_its_end() {
    let clock = MockClock::new();
    let mut sleep = pin!(clock.sleep(SECOND));
    block_on(poll_fn(|context| {
        assert_eq!(sleep.as_mut().poll(context), Poll::Pending);
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
fn a_sleep_may_advance_the_clock_to_its_end() {
    let clock = MockClock::new().auto_advancing();
    let before = clock.now();
    block_on(clock.sleep(SECOND));
    assert_eq!(clock.now(), before.saturating_add(SECOND));
}
