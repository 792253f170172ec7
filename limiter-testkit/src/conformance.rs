//! The conformance suite. It checks a store against the contract of [`WindowStore`](limiter_core::WindowStore).
//!
//! Each phase is a module with a `run` function. [`Suite`] runs the phases.

mod caller;
mod cancel;
mod case;
mod cases;
mod contention;
mod damaged;
mod forgetting;
mod generated;
mod golden;
mod handles;
mod long_log;
mod mismatch;
mod model;
mod policies;
mod random;
mod result;
mod script;
mod sentence;
mod session;
mod several;
mod sleep;
mod spawn;
mod store_clock;
mod suite;
mod watched;

pub use case::{Case, CaseId, CaseLimiter, Place, Step, Verb};
pub use mismatch::Mismatch;
pub use sentence::Sentence;
pub use session::replay;
pub use spawn::Task;
pub use suite::Suite;
pub use suite::failure::Failure;
pub use suite::report::{Phase, Report};
pub use suite::sizes::Sizes;

#[doc(hidden)]
pub use suite::macros as __private;
