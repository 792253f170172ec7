#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod failure;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod url;

pub use deadpool_postgres;
pub use table::{PostgresStore, PostgresTable, SCHEMA};
pub use url::PostgresUrl;
