//! Wrappers for outages of a store.

mod breaker;
mod failsafe;
mod fallback;
mod outage;
mod timeout;

pub use self::breaker::CircuitBreaker;
pub use self::failsafe::Failsafe;
pub use self::fallback::Fallback;
pub use self::outage::Outage;
pub use self::timeout::Timeout;
