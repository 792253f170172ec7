#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//
// # Where a key lives (placement/)
//
//     hash(name, key)
//       │
//       ├──► one of 4,096 direct slots           ┌──────┬───────────┬───────────┐
//       │    while the store is small            │ lock │ key    24 │ log    32 │   64 bytes
//       │                                        └──────┴───────────┴───────────┘
//       │ the slot has another key, or is closed
//       │
//       └──► one of 32 shards per thread         ┌──────┬─────────────────────┐
//                                                │ lock │ table: buckets, len │   64 bytes
//                                                └──────┴──┬──────────────────┘
//                                                          ▼ linear probing
//                                                ┌──────────────────┬───────────┬──────────────────┬───
//                                                │ key 24 │ log 32 │  vacant   │ key 24 │ log 32 │ …   64 bytes each
//                                                └──────────────────┴───────────┴──────────────────┴───
//
// When a shard gets its share of 4,096 keys, all direct slots close and their keys move to the shards.
//
// # What a log looks like (log/)
//
//     inline   up to four entries of cost 1, 4 bytes each, within the 32 bytes
//        │
//        │ a fifth entry, a cost, a longer window, a second limit …
//        ▼
//     ring     the 32 bytes hold the newest time, the first number and the length; one block holds the rest
//              ┌─────────┬────────┬─────┬────────┬───────┬─────────┬────────────────────┐
//              │ expired │ oldest │  …  │ newest │ empty │ expired │ hints, one a limit │
//              └─────────┴────────┴─────┴────────┴───────┴─────────┴────────────────────┘
//              an entry is narrow (4 bytes), narrow with costs (8), wide (8), or wide with costs (16)
//        │
//        │ an idempotency key, a refund, a settlement
//        ▼
//     sparse   a boxed deque of 24-byte entries, and an index of idempotency keys
//
// A log is converted downwards only.
//
// # The path of one `acquire`
//
//     store.rs       reads the clock, hashes the key
//     placement.rs   locks the direct slot, or else the shard, and finds the log
//     evaluate.rs    evaluate/fast.rs decides common operations, evaluate/general.rs all others
//     log/           finds where each window starts, drops expired entries, appends
//     store.rs       unlocks, and returns the decision; a fresh key is inserted by placement.rs
//
// # Where a change goes
//
//     a fifth inline entry    log/inline.rs: CAPACITY, Len, window_start; the sizes are checked in placement.rs
//     a third encoding        log/encoding.rs: the type, Format, with_format!; evaluate/fast.rs: FastLog
//     a new eviction rule     placement/eviction.rs
//     a different lock        placement/lock.rs
//     a new kind of operation evaluate/general.rs; fast.rs only if it is common

mod clock;
mod evaluate;
mod log;
mod placement;
mod store;
mod sweeper;

pub use store::MemoryStore;
pub use sweeper::Sweeper;
