//! What every store must do, run against any store.
//!
//! [`Suite::run`] is the entry point. It puts sequences of operations to a store, at given times, and compares every
//! field of every answer with what [`OracleStore`](crate::OracleStore) and the definitions say. The parts of it are
//! public for tests of one's own: a [`Case`] is a sequence as data, [`cases`] makes them at random, a [`Plan`] holds
//! the answers, and [`replay`] compares.

mod case;
mod contention;
#[cfg(test)]
mod coverage;
mod edges;
mod exhaustive;
mod plan;
mod replay;
mod spawn;
mod strategy;
mod suite;

pub use case::{Case, CaseLimiter, Operation, Step};
pub use plan::Plan;
pub use replay::{Mismatch, replay, replay_blocking};
pub use spawn::Task;
pub use strategy::{cases, limits, policies};
pub use suite::{Failure, Phase, Report, Suite};
