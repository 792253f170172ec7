#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`Stack`] for the recommended order.
//! - [`FailOpen`], [`FailClosed`] or [`Fallback`] for what happens to requests during an outage.
//! - [`DenialCache`] for hot keys.
//! - [`Prefix`] for tenants that share a store.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod breaker;
mod denial_cache;
mod fail_closed;
mod fail_open;
mod fallback;
mod outage;
mod prefix;
mod stack;
mod substitute;
mod timeout;

pub use breaker::CircuitBreaker;
pub use denial_cache::DenialCache;
pub use fail_closed::FailClosed;
pub use fail_open::FailOpen;
pub use fallback::Fallback;
pub use outage::Outage;
pub use prefix::Prefix;
pub use stack::{Guarded, Stack};
pub use timeout::Timeout;
