//! The conformance suite: checks a store against the contract of [`WindowStore`](limiter_core::WindowStore).

mod cases;
mod generate;
mod live;
mod phases;
mod sentence;
mod sequence;
mod suite;
mod tasks;

pub use generate::strategy::{cases, limits, policies};
pub use sentence::Sentence;
pub use sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
pub use sequence::plan::Plan;
pub use sequence::replay::{Mismatch, replay, replay_blocking};
pub use suite::{Failure, Phase, Report, Suite};
pub use tasks::spawn::Task;

#[doc(hidden)]
pub use suite::private as __private;
