//! An exact sliding-window rate limiter: in memory for one process, in Redis or Postgres for a fleet.
//!
//! A limit of 100 requests in 60 seconds holds for *every* 60 seconds, not per calendar minute and not on average. Every
//! decision reports the remaining units, the exact wait until the request fits, and when the window is empty again. All
//! stores return the same decision in every field.
//!
//! ```
//! use exact_limiter::{Limiter, MemoryStore, Policy, policy};
//!
//! const SEARCH: Policy = policy!("5/10s, 100/1h"); // checked by the compiler
//!
//! let search = Limiter::new("search", SEARCH, MemoryStore::new());
//! let decision = search.acquire("customer 7").now()?;
//! match decision.retry_after_secs() {
//!     None => println!("allowed, {} remaining", decision.remaining()),
//!     Some(seconds) => println!("429, Retry-After: {seconds}"),
//! }
//! # assert_eq!(decision.remaining(), 4);
//! # Ok::<(), exact_limiter::Error>(())
//! ```
//!
//! `.now()` works on in-memory stores and needs no runtime. `.await` works on every store and returns the same decision.
//!
//! | question | answer |
//! |---|---|
//! | Which store? | `MemoryStore` in one process; `RedisStore` or `PostgresStore` in a fleet |
//! | Which call? | [`acquire`](Limiter::acquire) before the work, with a [`permit`](request::Acquire::permit) if its cost is known later; [`record`](Limiter::record) after it; [`peek`](Limiter::peek) to look |
//! | What on a denial? | [`retry_after`](Decision::retry_after) says how long to wait; [`within`](request::Acquire::within) waits; [`into_result`](Decision::into_result) makes it an error |
//! | What in an outage? | a call returns an `Err`, unless the store is in a `Guarded` of `wrappers`, which admits, denies or limits locally |
//! | How do I test? | with a `MemoryStore` in a [`WithClock`](time::WithClock), and the `MockClock` of limiter-testkit |
//!
//! # Where to start
//! - [`Limiter`] is the entry point. Its documentation lists the methods: acquire, record, peek, status, settle, refund, reset.
//! - [`Policy`] is a set of limits; [`policy!`] parses one at compile time.
//! - [`Key`] lists the types that identify a client: text, numbers, addresses, tuples and more.
//! - [`Decision`] is the result: allowed or denied, the usage, and the waiting times.
//! - [`Permit`] is an admitted acquire that can be settled at its actual cost, or refunded.
//! - [`AllOf`] is a decision over several limiters, all or nothing.
//! - [`request`] lists each call's wait, errors and cost.
//! - [`SharedStore`] is a store chosen at run time, which several limiters share. [`open_store`] opens one by its URL.
#![cfg_attr(
    feature = "memory",
    doc = "- [`memory`] is the in-process store, [`MemoryStore`]."
)]
#![cfg_attr(
    feature = "redis",
    doc = "- [`redis`] is the Redis store, [`RedisStore`], for one server or Redis Cluster."
)]
//! - [`time`] has timestamps, and the mock-clock wrapper for tests.
//! - [`store`] is for authors of other stores, and for code that is generic over the store.
//!
//! The [recipes] limit logins, LLM tokens, runs across a fleet and more, each in up to thirty lines.
//!
//! [recipes]: https://docs.rs/crate/exact-limiter/latest/source/docs/recipes.md
//!
//! # Names and keys
//! **A log belongs to a limiter's name and a key.**
//!
//! Limiters with different names never see each other's entries, even with the same store and key. Limiters with the same
//! name share their logs, even across processes on one Redis server. Give each limited resource its own name.
//!
//! # Features
//! | feature | adds |
//! |---|---|
//! | `memory` (default) | `MemoryStore`, the in-process store |
//! | `postgres` | `PostgresStore`; enables `log` and `tokio` |
//! | `postgres-tls` | TLS for URLs of Postgres, with rustls; enables `postgres` |
//! | `redis` | `RedisStore` for one Redis server; enables `tokio` |
//! | `redis-cluster` | `RedisStore` for Redis Cluster; enables `redis` |
//! | `redis-sentinel` | `RedisStore` behind Redis Sentinel; enables `redis` |
//! | `redis-tls` | TLS for `RedisStore`, with rustls; enables `redis` |
//! | `log` | `LogStore`, a store over any database that can swap bytes |
//! | `tokio` | waiting with `within` in a tokio runtime |
//! | `serde` | limits and policies in configuration files, decisions and statuses as JSON |
//! | `metrics` | counters and histograms of each operation |
//! | `wrappers` | timeout, circuit breaker, fail open, fail closed, fallback, denial cache, decisions from blocks |
//! | `uuid` | `Uuid` as a key and as an idempotency key |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use limiter_core::{
    Admitted, AllOf, Counting, Decision, Denied, Error, ErrorKind, IntoPolicy, IpBlock,
    JointDecision, Key, KeyBuf, Limit, LimitStatus, Limiter, Name, OutOfRange, Permit, Policy,
    Receipt, Settled, SharedStore, Status, Window, policy, request,
};
#[cfg(feature = "log")]
pub use limiter_log as log;
mod open;

#[cfg(feature = "memory")]
pub use limiter_memory::{self as memory, MemoryStore};
#[cfg(feature = "postgres")]
pub use limiter_postgres::{self as postgres, PostgresStore};
#[cfg(feature = "redis")]
pub use limiter_redis::{self as redis, RedisStore};
#[cfg(any(feature = "metrics", feature = "wrappers"))]
pub use limiter_wrappers as wrappers;
pub use open::open_store;

/// The store contract, for authors of stores and for code that is generic over the store.
///
/// [`WindowStore`](store::WindowStore) is the contract. Most backends need only load and swap bytes: then use `limiter-log`. To
/// write another, read `ReferenceStore` in `limiter-testkit` first. The testkit's conformance suite checks the result.
pub mod store {
    pub use limiter_core::store::*;
    pub use limiter_core::{MAX_COST, MAX_LIMITS, PerLimit};
}

/// Timestamps and clocks.
///
/// [`WithClock`](time::WithClock) replaces a store's clock, usually with a mock clock in tests.
pub mod time {
    pub use limiter_core::{BoxFuture, Clock, Timestamp, WithClock, ceil_secs};
}

// Runs the code blocks of the documents as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "memory", feature = "tokio"))]
#[doc = include_str!("../docs/recipes.md")]
struct Recipes;

#[cfg(all(doctest, feature = "wrappers"))]
#[doc = include_str!("../docs/leases.md")]
struct Leases;

#[cfg(all(doctest, feature = "memory", feature = "redis", feature = "wrappers"))]
#[doc = include_str!("../docs/production.md")]
struct Production;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../docs/from-governor.md")]
struct FromGovernor;
