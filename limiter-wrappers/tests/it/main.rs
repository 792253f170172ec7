//! The tests of the crate, in one program.

mod conformance;
mod dashboard;
mod denial_cache;
mod fallback;
mod faults;
mod leases;
mod metrics;
mod outages;
mod scene;
mod several;
