#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`MemoryStore`] is the store. Pass it to [`Limiter::new`](limiter_core::Limiter::new), in an
//!   [`Arc`](std::sync::Arc) if several limiters share it.
//! - [`MemoryStore::with_max_keys`] bounds the number of keys.
//! - [`Sweeper`] frees the memory of expired keys in the background.
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
