//! Reports each operation on a store, with its duration.
//!
//! [`Metrics`] (feature `metrics`) and [`Tracing`] (feature `tracing`) are observers of a store:
//!
//! ```
//! # #[cfg(all(feature = "metrics", feature = "tracing"))] {
//! use limiter_core::{Limiter, policy};
//! # use limiter_testkit::ReferenceStore as MemoryStore;
//! use limiter_wrappers::observe::{Metrics, ObservedStore, Tracing};
//!
//! let store = ObservedStore::new(MemoryStore::new(), Metrics::named("memory"));
//! let store = ObservedStore::new(store, Tracing::new());
//! let search = Limiter::new("search", policy!("5/10s"), store);
//! # let _ = search;
//! # }
//! ```
//!
//! Neither reports keys, which are often addresses or secrets and have no bounded number.
//!
//! Around a whole stack, an observer sees what callers see: no errors if the stack fails open, fails closed or falls back. Around
//! the innermost store, it sees how often the store is called, but not the calls that a timeout around it drops.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(all(feature = "metrics", feature = "outages"))]
mod report;
mod store;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
#[cfg(all(feature = "metrics", feature = "outages"))]
pub use self::report::Report;
pub use self::store::{ObservedStore, Operation, StoreObserver};
#[cfg(feature = "tracing")]
pub use self::tracing::Tracing;
