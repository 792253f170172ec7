#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod golden;
mod oracle;
#[cfg(feature = "redis-server")]
pub mod server;

pub use answer::{Answer, LimitAnswer, StatusAnswer};
pub use clock::MockClock;
pub use oracle::{OracleEntry, OracleStore};
