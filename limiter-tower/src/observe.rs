//! Metrics, traces and hooks.
//!
//! Two places report. Neither reports keys, which are often addresses or secrets and have no bounded number.
//!
//! | place | reports | for |
//! |---|---|---|
//! | [`ObservedStore`], a wrapper around a store | each operation on the store, with its duration | every user of a limiter, HTTP or not |
//! | [`LimitLayerBuilder::observe`](crate::LimitLayerBuilder::observe) | what each rule said about each request, also without the store: exemptions, missing keys, failing open | HTTP and gRPC |
//!
//! [`Metrics`] (feature `metrics`) and [`Tracing`] (feature `tracing`) are observers of a store; a pair of observers is one too:
//!
//! ```
//! # #[cfg(all(feature = "metrics", feature = "tracing"))] {
//! use limiter_core::{Limiter, policy};
//! # use limiter_testkit::OracleStore as MemoryStore;
//! use limiter_tower::observe::{Metrics, ObservedStore, Tracing};
//!
//! let store = ObservedStore::new(MemoryStore::new(), (Metrics::new(), Tracing::new()));
//! let search = Limiter::new("search", policy!("5/10s"), store);
//! # let _ = search;
//! # }
//! ```

#[cfg(feature = "metrics")]
mod metrics;
mod request;
mod store;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
pub use self::request::{Observation, Outcome};
pub use self::store::{ObservedStore, Operation, StoreObserver};
#[cfg(feature = "tracing")]
pub use self::tracing::Tracing;
