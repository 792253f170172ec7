#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`Limiter`] is the front end. Its methods return a [`Request`], and awaiting that returns a [`Decision`].
//! - [`Limit`], [`Window`] and [`Policy`] define limits; [`policy!`] parses a policy at compile time.
//! - [`Key`] lists the types that identify a client.
//! - [`Permit`] settles or refunds an admitted acquire. [`AllOf`] decides over several limiters together.
//! - [`request`] lists each call's wait, errors and cost.
//! - [`store`] is for authors of backends: the [`WindowStore`] contract and everything it refers to.
//! - [`WithClock`] replaces a store's clock, for tests.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bounds;
mod clock;
mod decision;
mod error;
mod facts;
#[doc(hidden)]
pub mod internal;
mod joint;
mod key;
mod limit;
mod limiter;
mod log;
mod log_key;
mod merging;
mod name;
mod notation;
mod op;
mod parse;
mod per_limit;
mod policy;
pub mod request;
mod resolution;
mod search;
#[cfg(feature = "serde")]
mod serde;
mod settled;
mod settlement;
mod status;
pub mod store;
mod time;
mod verdict;
mod with_clock;

pub use bounds::{MAX_COST, MAX_LIMITS, OutOfRange};
pub use clock::{BoxFuture, Clock};
pub use decision::Decision;
pub use error::{Error, ErrorKind};
pub use key::{IpBlock, Key, KeyBuf};
pub use limit::Limit;
pub use limiter::{Limiter, SharedStore};
pub use name::Name;
pub use op::IdempotencyKey;
pub use per_limit::PerLimit;
pub use policy::{Counting, IntoPolicy, Policy};
pub use request::{AllOf, JointDecision, JointDenied, Permit, PermitGuard, Request};
pub use settled::Settled;
pub use settlement::Receipt;
pub use status::{LimitStatus, Status, ceil_secs};
pub use store::{SyncStore, WindowStore};
pub use time::{Timestamp, Window};
pub use verdict::Denied;
pub use with_clock::WithClock;
