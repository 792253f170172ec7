#![doc = include_str!("../README.md")]
//!
//! # Where to start
//! - [`Limiter`] is the front end. Its methods return builders, and awaiting one returns a [`Decision`].
//! - [`Limit`], [`Window`] and [`Policy`] define limits; [`policy!`] parses a policy at compile time.
//! - [`Key`] lists the types that identify a client.
//! - [`Permit`] settles or refunds an admitted acquire. [`AllOf`] decides over several limiters together.
//! - [`request`] lists each call's wait, errors and cost.
//! - [`store`] is for authors of backends: the [`WindowStore`] contract and everything it refers to.
//! - [`WithClock`] replaces a store's clock, for tests.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod decision;
mod denied;
mod error;
#[doc(hidden)]
pub mod internal;
mod key;
mod limiter;
mod log;
mod name;
mod policy;
pub mod request;
#[cfg(feature = "serde")]
mod serde;
mod settled;
mod status;
pub mod store;

pub use decision::Decision;
pub use denied::{Admitted, Denied};
pub use error::{Error, ErrorKind};
pub use key::{IpBlock, Key, KeyBuf};
pub use limiter::{Limiter, SharedStore};
pub use name::Name;
pub use policy::bounds::{MAX_COST, MAX_LIMITS, OutOfRange};
pub use policy::limit::Limit;
pub use policy::time::{Timestamp, Window};
pub use policy::{Counting, IntoPolicy, Policy};
pub use request::{AllOf, JointDecision, Permit};
pub use settled::Settled;
pub use status::{LimitStatus, Status, ceil_secs};
pub use store::clock::{BoxFuture, Clock};
pub use store::per_limit::PerLimit;
pub use store::settlement::Receipt;
pub use store::with_clock::WithClock;
pub use store::{SyncStore, WindowStore};
