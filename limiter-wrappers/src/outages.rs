//! Wrappers for outages of a store.

mod breaker;
mod fail_closed;
mod fail_open;
mod fallback;
mod outage;
mod substitute;
mod timeout;

pub use self::breaker::CircuitBreaker;
pub use self::fail_closed::FailClosed;
pub use self::fail_open::FailOpen;
pub use self::fallback::Fallback;
pub use self::outage::Outage;
pub use self::timeout::Timeout;
