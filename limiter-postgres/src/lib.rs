#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod connect;
mod connections;
mod failure;
mod requests;
mod stream;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod url;

pub use backend::SCHEMA;
pub use table::{PostgresStore, PostgresTable};
pub use url::PostgresUrl;
