//! Wrappers for a store that is slow, gone or hot.

mod breaker;
mod denial_cache;
mod fail_closed;
mod fail_open;
mod fallback;
mod outage;
mod stack;
mod substitute;
mod timeout;

pub use self::breaker::CircuitBreaker;
pub use self::denial_cache::DenialCache;
pub use self::fail_closed::FailClosed;
pub use self::fail_open::FailOpen;
pub use self::fallback::Fallback;
pub use self::outage::Outage;
pub use self::stack::{Guarded, Stack};
pub use self::timeout::Timeout;
