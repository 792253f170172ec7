//! A clock that moves only when a test moves it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::{BoxFuture, Clock, Timestamp};

/// A clock for tests. Time moves only when a test moves it. Clones share the same time.
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
    /// The pending sleeps, by their numbers.
    sleepers: BTreeMap<u64, Waker>,
    /// The number of sleeps so far.
    sleeps: u64,
}

impl MockClock {
    /// Returns a clock that starts in November 2023.
    #[must_use]
    pub fn new() -> Self {
        let now = Timestamp::from_micros_saturating(1_700_000_000_000_000);
        Self(Arc::new(Mutex::new(State {
            now,
            auto_advance: false,
            sleepers: BTreeMap::new(),
            sleeps: 0,
        })))
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
            state.sleepers.values().cloned().collect()
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

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        let mut state = self.state();
        state.sleeps += 1;
        Box::pin(Sleep {
            clock: self.clone(),
            until: state.now.saturating_add(duration),
            number: state.sleeps,
        })
    }
}

struct Sleep {
    clock: MockClock,
    until: Timestamp,
    number: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.state();
        if state.now < self.until && !state.auto_advance {
            state.sleepers.insert(self.number, context.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.clock
            .change(|state| state.now = state.now.max(self.until));
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.state().sleepers.remove(&self.number);
    }
}
