//! The conformance suite: checks a store against the contract of [`WindowStore`](limiter_core::WindowStore).
//!
//! Each phase is a module with a function `run`. [`Suite`] runs them.

mod cancel;
mod cases;
mod contention;
mod forgetting;
mod generated;
mod golden;
mod handles;
mod long_log;
mod own_clock;
mod sentence;
mod sequence;
mod store_clock;
mod suite;
mod tasks;

pub use generated::strategy::{cases, limits, policies};
pub use sentence::Sentence;
pub use sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
pub use sequence::plan::Plan;
pub use sequence::replay::{Mismatch, replay, replay_blocking};
pub use suite::Suite;
pub use suite::failure::Failure;
pub use suite::report::{Phase, Report};
pub use tasks::spawn::Task;

#[doc(hidden)]
pub use suite::macros as __private;
