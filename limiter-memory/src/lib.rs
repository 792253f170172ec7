#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod clock;
mod common;
mod entries;
mod few;
mod form;
mod ids;
mod keep;
mod key;
mod layout;
mod line;
mod locks;
mod log;
mod many;
mod ring;
mod store;
mod sweep;
mod sweeper;
mod table;

pub use store::MemoryStore;
pub use sweeper::Sweeper;
