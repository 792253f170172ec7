//! What a store does while its server or the network fails.
//!
//! - [`Proxy`] stands between a store and any TCP server, and delays, holds, cuts or resets what passes.
//! - [`Scene`] is a server with faults that can be switched on and off.
#![cfg_attr(feature = "redis-server", doc = "  [`RedisScene`] and [`ClusterScene`] are those of Redis.")]
//! - [`observe`] runs several stores through one fault and reports what their callers see, and every broken promise.
//! - [`soak`] runs random faults for a given time.
//! - [`poll_times`](crate::poll_times) drops a future after a number of polls.
//!
//! An author of another backend implements [`Scene`], mostly with a [`Proxy`], and passes the store in a [`Subject`]. Tests that
//! assert times share a test program with no others, and hold [`alone`].

mod alone;
#[cfg(feature = "redis-server")]
mod cluster;
mod observe;
mod proxy;
#[cfg(feature = "redis-server")]
mod redis;
mod scene;
mod soak;
mod subject;

pub use alone::{Alone, alone};
#[cfg(feature = "redis-server")]
pub use cluster::{ClusterFault, ClusterScene};
pub use observe::{Observed, observe};
pub use proxy::{Network, Proxy};
#[cfg(feature = "redis-server")]
pub use redis::{RedisFault, RedisScene};
pub use scene::Scene;
pub use soak::{Soak, SoakReport, soak};
pub use subject::{Outcome, Subject};
