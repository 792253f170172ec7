#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "tokio")]
pub use limiter_core::TokioTimer;
pub use limiter_core::{
    At, Clock, Counting, Decision, DynWindowStore, Entry, EntryId, Error, ErrorKind, Facts, Limit, LimitDecision,
    Limiter, MAX_COST, MAX_LIMITS, Mode, NowStore, Op, Outcome, PerLimit, Policy, Receipt, Settlement, Timer,
    Timestamp, Usage, Window, WindowStore, decide,
};
#[cfg(feature = "memory")]
pub use limiter_memory::{MemoryStore, Sweeper};
#[cfg(feature = "redis")]
pub use limiter_redis::{self as redis, RedisStore};
