#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clock;
mod deep;
mod few;
mod ids;
mod keep;
mod key;
mod log;
mod store;
mod survey;
mod sweep;

pub use store::MemoryStore;
