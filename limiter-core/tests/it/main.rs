//! The tests of the crate, in one program.

mod acquire_many;
mod log;
mod permits;
mod requests;
mod together;
mod waiting;
