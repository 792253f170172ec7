//! Clocks and timers that are not the store's.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use crate::time::Timestamp;

/// A clock that replaces the store's: a mock in tests, or the one time authority of a fleet.
///
/// [`WithClock`](crate::WithClock) puts it in front of a store. Without one, the store provides the time, which is right in
/// production: a Redis store reads the server's clock, so the clocks of its clients do not matter.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the time now. It may step back: a log never does, because an operation happens no earlier than the newest
    /// entry.
    fn now(&self) -> Timestamp;

    /// Returns the timer that sleeps by this clock. Default: none, so that waiting uses the limiter's timer.
    fn timer(&self) -> Option<&dyn Timer> {
        None
    }
}

/// A boxed future, as object-safe traits return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sleeps, on whatever runtime the program has. A mock clock is one too, so that waiting can be tested without waiting.
pub trait Timer: Debug + Send + Sync + 'static {
    /// Returns a future that ends after `duration`, not earlier.
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()>;
}

/// Sleeps on a tokio runtime with its time driver enabled.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTimer;

#[cfg(feature = "tokio")]
impl Timer for TokioTimer {
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
