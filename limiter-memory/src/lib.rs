#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`MemoryStore`] is the store. Pass it to [`Limiter::new`](limiter_core::Limiter::new), in an
//!   [`Arc`](std::sync::Arc) if several limiters share it.
//! - [`MemoryStore::with_max_keys`] bounds the number of keys.
//! - [`MemoryStore::export`] and [`MemoryStore::import`] carry counts over a restart.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]
//
// # Where a key lives (placement/)
//
//     hash(name, key)
//       │
//       ├─► one of 4,096 direct slots         ┌──────┬────────┬────────┐
//       │   while the store is small          │ lock │ key 24 │ log 32 │           64 bytes
//       │                                     └──────┴────────┴────────┘
//       │ another key has the slot, or direct slots are closed
//       │
//       └─► one of 32 shards per thread; up   ┌──────┬────────────────┐
//           to 4,096 in a bounded store       │ lock │ table          │            64 bytes
//                                             └──────┴──┬─────────────┘
//                                                       ▼ buckets, linear probing
//                                             ┌────────┬────────┬───────────┬───
//                                             │ key 24 │ log 32 │ oldest  8 │ …      64 bytes each
//                                             └────────┴────────┴───────────┴───
//
// When a shard gets its share of 4,096 keys, all direct slots close and their keys move to the shards. `oldest` is the number and
// the time of the oldest entry that counted: while it counts, an operation does not read the front of the log's block.
//
// # What a log looks like (log/)
//
//     inline   up to four entries of cost 1, 4 bytes each, within the 32 bytes
//        │ a fifth entry, a cost, a window above 71 minutes
//        ▼
//     ring     the 32 bytes hold the newest time, the first number and the length; a block holds the entries
//              ┌─────────┬────────┬─────┬────────┬───────┬─────────┬──────────────────────┐
//              │ expired │ oldest │  …  │ newest │ empty │ expired │ a hint for each limit│
//              └─────────┴────────┴─────┴────────┴───────┴─────────┴──────────────────────┘
//              entries are narrow (4 bytes), narrow with costs (8), wide (8) or wide with costs (16)
//        │ an idempotency key, a refund, a settlement, a resolution
//        ▼
//     sparse   the core's `Log` in a box: a deque of 24-byte entries, and a map of idempotency keys
//
// A log is only converted downwards.
//
// # Where a change goes
//
//     a fifth inline entry     log/inline.rs: CAPACITY; log/view.rs: window_start; placement.rs checks the sizes
//     a third encoding         log/ring.rs: the type, Format, with_format!
//     a new eviction rule      placement/eviction.rs
//     a different lock         placement/lock.rs
//     a new operation          evaluate.rs: evaluate

mod clock;
mod evaluate;
mod log;
mod placement;
mod saved;
mod store;

pub use store::MemoryStore;
