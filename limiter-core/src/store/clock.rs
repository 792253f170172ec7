//! Clocks that replace the store's.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use crate::policy::time::Timestamp;

/// A clock that replaces the store's: a mock clock in tests, or a shared time authority.
///
/// [`WithClock`](crate::WithClock) puts it in front of a store. Production code rarely needs one: the store provides the
/// time. A Redis store reads the server's clock, so the clients' clocks do not matter.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the current time.
    ///
    /// The clock may step back. An operation then happens at the time of its log's newest entry, so a step back releases no unit.
    fn now(&self) -> Timestamp;

    /// Returns a future that completes once `duration` has passed by this clock, never earlier.
    ///
    /// A clock of real time sleeps on the program's runtime: `Box::pin(tokio::time::sleep(duration))`. A mock clock completes when a
    /// test advances it, so tests of waiting code need not sleep.
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()>;
}

/// A boxed future, as returned by object-safe traits.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
