#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use limiter_core::{
    Counting, Decision, EntryId, Error, ErrorKind, Ipv6Block, Key, KeyBuf, Limit, LimitStatus, Limiter, Name,
    OutOfRange, Permit, Policy, Receipt, Settled, SharedStore, Status, Window, policy, request,
};
#[cfg(feature = "memory")]
pub use limiter_memory::{self as memory, MemoryStore};
#[cfg(feature = "redis")]
pub use limiter_redis::{self as redis, RedisStore};

/// For authors of stores, and for code that is generic over the store.
///
/// [`WindowStore`](store::WindowStore) is the contract; [`Log`](store::Log) is what most backends are built from; the suite of
/// `limiter-testkit` proves them.
pub mod store {
    pub use limiter_core::store::*;
    pub use limiter_core::{MAX_COST, MAX_LIMITS, PerLimit};
}

/// Time: timestamps, clocks other than the store's, timers, and whole seconds for HTTP headers.
pub mod time {
    #[cfg(feature = "tokio")]
    pub use limiter_core::TokioTimer;
    pub use limiter_core::{BoxFuture, Clock, Timer, Timestamp, WithClock, whole_secs};
}
