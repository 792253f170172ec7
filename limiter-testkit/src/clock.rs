//! A clock that moves only when a test moves it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::{BoxFuture, Clock, Timer, Timestamp};

/// A clock and timer for tests. Time moves only when a test moves it. Clones share the same time.
///
/// ```
/// use std::time::Duration;
/// use limiter_core::Clock;
/// use limiter_testkit::MockClock;
///
/// let clock = MockClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_micros(1));
/// assert_eq!(clock.now().micros_since(before), 1);
/// ```
#[derive(Clone, Debug)]
pub struct MockClock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: Timestamp,
    auto_advance: bool,
    sleepers: Vec<(u64, Waker)>,
    next_sleeper: u64,
}

impl MockClock {
    /// Returns a clock that starts in November 2023.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_micros_saturating(1_700_000_000_000_000))
    }

    /// Returns a clock that starts at `now`.
    #[must_use]
    pub fn starting_at(now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(State { now, auto_advance: false, sleepers: Vec::new(), next_sleeper: 0 })))
    }

    /// Makes every sleep advance the clock to its end, so that no sleep waits.
    #[must_use]
    pub fn auto_advancing(self) -> Self {
        self.state().auto_advance = true;
        self
    }

    /// Sets the time, forwards or backwards, and wakes the sleepers whose time has come.
    pub fn set(&self, now: Timestamp) {
        self.change(|state| state.now = now);
    }

    /// Advances the time by `by`, rounded down to whole microseconds, and wakes the sleepers whose time has come.
    pub fn advance(&self, by: Duration) {
        self.change(|state| state.now = state.now.saturating_add(by));
    }

    /// Moves the time back by `by`, rounded down to whole microseconds. Stops at the epoch.
    pub fn step_back(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.change(|state| state.now = Timestamp::from_micros_saturating(state.now.as_micros().saturating_sub(by)));
    }

    /// Returns the number of pending sleeps. A test uses it to wait until the code under test sleeps.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.state().sleepers.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes sleepers outside the lock. Each checks whether its time has come.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers: Vec<Waker> = {
            let mut state = self.state();
            change(&mut state);
            state.sleepers.iter().map(|(_, waker)| waker.clone()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Default for MockClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MockClock {
    fn now(&self) -> Timestamp {
        self.state().now
    }

    fn timer(&self) -> Option<&dyn Timer> {
        Some(self)
    }
}

impl Timer for MockClock {
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(Sleep { clock: self.clone(), until: self.now().saturating_add(duration), place: None })
    }
}

struct Sleep {
    clock: MockClock,
    until: Timestamp,
    place: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let must_advance = {
            let mut state = self.clock.state();
            if state.now >= self.until {
                return Poll::Ready(());
            }
            if !state.auto_advance {
                let waker = context.waker().clone();
                let place = self.place.unwrap_or(state.next_sleeper);
                match state.sleepers.iter_mut().find(|(other, _)| *other == place) {
                    Some(sleeper) => sleeper.1 = waker,
                    None => {
                        state.next_sleeper += 1;
                        state.sleepers.push((place, waker));
                    }
                }
                drop(state);
                self.place = Some(place);
                return Poll::Pending;
            }
            self.until
        };
        self.clock.set(must_advance);
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.clock.state().sleepers.retain(|(other, _)| *other != place);
        }
    }
}
