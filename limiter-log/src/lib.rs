#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod call;
mod key;
mod queue;
mod store;
mod table;

pub use key::{read_key, stored_key};
pub use limiter_core::{BoxFuture, Timestamp};
pub use store::LogStore;
pub use table::{Change, Loaded, New, Table, async_trait};
