#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`Stack`] for the recommended order.
//! - [`FailOpen`], [`FailClosed`] or [`Fallback`] for what happens to requests during an outage.
//! - [`DenialCache`] for hot keys.
//! - [`observe`] for metrics and traces.
//! - [`Prefix`] for tenants that share a store.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "outages")]
mod breaker;
#[cfg(feature = "outages")]
mod denial_cache;
#[cfg(feature = "outages")]
mod fail_closed;
#[cfg(feature = "outages")]
mod fail_open;
#[cfg(feature = "outages")]
mod fallback;
pub mod observe;
#[cfg(feature = "outages")]
mod outage;
mod prefix;
#[cfg(feature = "outages")]
mod stack;
#[cfg(feature = "outages")]
mod substitute;
#[cfg(feature = "outages")]
mod timeout;

#[cfg(feature = "outages")]
pub use breaker::CircuitBreaker;
#[cfg(feature = "outages")]
pub use denial_cache::DenialCache;
#[cfg(feature = "outages")]
pub use fail_closed::FailClosed;
#[cfg(feature = "outages")]
pub use fail_open::FailOpen;
#[cfg(feature = "outages")]
pub use fallback::Fallback;
#[cfg(feature = "outages")]
pub use outage::Outage;
pub use prefix::Prefix;
#[cfg(feature = "outages")]
pub use stack::{Guarded, Stack};
#[cfg(feature = "outages")]
pub use timeout::Timeout;
