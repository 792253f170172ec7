//! The tests of the crate, in one program. The tests in `faults.rs` must run alone.

mod conformance;
mod dashboard;
mod denial_cache;
mod fallback;
mod leases;
mod metrics;
mod outages;
mod script;
mod several;
mod ways;
