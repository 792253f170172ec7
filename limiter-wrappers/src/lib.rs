#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`Stack`] for the recommended order.
//! - [`Failsafe`] or [`Fallback`] for what happens to requests during an outage.
//! - [`DenialCache`] for hot keys.
//! - [`observe`] for metrics and traces.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "outages")]
mod denial_cache;
pub mod observe;
#[cfg(feature = "outages")]
mod outages;
#[cfg(feature = "outages")]
mod stack;

#[cfg(feature = "outages")]
pub use denial_cache::DenialCache;
#[cfg(feature = "outages")]
pub use outages::{CircuitBreaker, Failsafe, Fallback, Outage, Timeout};
#[cfg(feature = "outages")]
pub use stack::{Guarded, Stack};
