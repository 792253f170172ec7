#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`Guarded`] handles outages of a store, and hot keys.
//! - [`observe`] for metrics.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "outages")]
mod guarded;
#[cfg(feature = "metrics")]
pub mod observe;

#[cfg(feature = "outages")]
pub use guarded::{Guarded, GuardedBuilder, Outage, can_lease};
