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
mod format;
mod id;
mod inspect;
mod key;
mod reply;
mod request;
mod scan;
mod script;
mod settings;
mod store;
mod url;

pub use builder::{DEFAULT_PREFIX, RedisStoreBuilder};
pub use connection::Connection;
pub use inspect::LogInfo;
pub use key::StoredKey;
pub use scan::{Cursor, LiveKey, Page};
pub use store::RedisStore;
