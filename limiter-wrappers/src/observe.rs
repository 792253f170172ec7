//! Counts and times each operation on a store.
//!
//! ```
//! use limiter_core::{Limiter, policy};
//! # use limiter_testkit::ReferenceStore as MemoryStore;
//! use limiter_wrappers::observe::{Metrics, ObservedStore};
//!
//! let store = ObservedStore::new(MemoryStore::new(), Metrics::new("memory"));
//! let search = Limiter::new("search", policy!("5/10s"), store);
//! # let _ = search;
//! ```
//!
//! No metric has a key, which is often an address or a secret. Their number has no bound.
//!
//! Around a whole stack, metrics show the callers' results: no errors if the stack fails open, fails closed or falls back.
//! Around the innermost store, they show how often the store is called, but not the calls that a timeout around it drops.

mod metrics;
mod store;

pub use self::metrics::Metrics;
pub use self::store::ObservedStore;
