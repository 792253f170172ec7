//! The tests of the crate, in one program.

mod acquire_many;
mod dropped;
mod log;
mod merging;
mod permits;
mod requests;
mod slow_store;
mod together;
mod waiting;
