#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod builder;
#[cfg(feature = "cluster")]
mod cluster;
mod connection;
mod failure;
mod id;
mod key;
mod live;
#[cfg(feature = "cluster")]
mod nodes;
mod reply;
mod request;
mod script;
mod store;
mod url;

pub use builder::{DEFAULT_PREFIX, RedisStoreBuilder};
pub use connection::Connection;
pub use key::StoredKey;
pub use live::{Cursor, LiveKey, LogInfo, Page};
pub use store::RedisStore;
