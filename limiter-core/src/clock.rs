//! Who tells the time when it is not the store.

use std::fmt::Debug;

use crate::Timestamp;

/// A clock of the caller's choice: a mock in tests, one time authority of a fleet, the clock of a replayed trace.
///
/// A [`Limiter`](crate::Limiter) without one lets the store tell the time, which is right in production: a Redis store
/// reads the server's clock, so that the clocks of its clients do not matter.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time now. It may step back: a log never does (an operation is computed no earlier than the newest entry).
    fn now(&self) -> Timestamp;
}
