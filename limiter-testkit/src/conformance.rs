//! The conformance suite. It checks a store against the contract of [`WindowStore`](limiter_core::WindowStore).
//!
//! Each phase is a module with a `run` function. [`Suite`] runs the phases.

mod cancel;
mod cases;
mod contention;
mod forgetting;
mod generated;
mod golden;
mod handles;
mod long_log;
mod script;
mod sentence;
mod sequence;
mod session;
mod several;
mod sleep;
mod spawn;
mod store_clock;
mod strategy;
mod suite;
mod watched;

pub use sentence::Sentence;
pub use sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
pub use sequence::mismatch::Mismatch;
pub use session::replay;
pub use spawn::Task;
pub use strategy::{cases, policies};
pub use suite::Suite;
pub use suite::failure::Failure;
pub use suite::report::{Phase, Report};
pub use suite::sizes::Sizes;

#[doc(hidden)]
pub use suite::macros as __private;
