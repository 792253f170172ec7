#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "tokio")]
pub use limiter_core::TokioTimer;
pub use limiter_core::{
    Clock, Counting, Decision, EntryId, Error, ErrorKind, Ipv6Block, Key, KeyBuf, Limit, LimitStatus, Limiter, Name,
    OutOfRange, PerLimit, Permit, Policy, Receipt, RefundOnDrop, Request, Settled, SharedStore, Status, Timer,
    Timestamp, Window, WindowStore, WithClock, policy, request, store, whole_secs,
};
#[cfg(feature = "memory")]
pub use limiter_memory::{MemoryStore, Sweeper};
#[cfg(feature = "redis")]
pub use limiter_redis::{self as redis, RedisStore};
