#![doc = include_str!("../README.md")]
//!
//! # Where to start
//!
//! - [`RedisStore::connect`] connects with the default configuration.
//! - [`RedisStore::builder`] changes the key prefix, the timeouts and the retries; [`RedisStoreBuilder::connect`] lists the URLs.
//! - [`RedisStoreBuilder::with_connection`] takes a connection that you opened.
//! - [`Limiter`](limiter_core::Limiter) puts a policy and a name in front of the store.
//! - [`RedisStore::inspect`] describes one live log; [`RedisStore::scan`] lists them.
//! - [`Error::kind`](limiter_core::Error::kind) classifies a failure, and
//!   [`Error::is_retryable`](limiter_core::Error::is_retryable) returns `true` if the same call may succeed later.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod builder;
mod channel;
#[cfg(feature = "cluster")]
mod cluster;
mod connection;
mod eviction;
mod failure;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
mod first_response;
#[doc(hidden)]
pub mod format;
mod id;
mod inspect;
mod key;
mod reconnecting;
mod reply;
mod request;
mod scan;
mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server_clock;
mod settings;
mod store;
mod url;

pub use builder::{DEFAULT_PREFIX, RedisStoreBuilder};
pub use connection::Connection;
pub use limiter_core::store::{LiveKey, LogInfo, StoredKey};
pub use scan::{Cursor, Page};
pub use store::RedisStore;
pub use url::RedisUrl;
