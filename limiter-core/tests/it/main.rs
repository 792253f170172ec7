//! The tests of the crate, in one program.

mod all_of;
mod log;
mod permits;
mod requests;
mod slow_store;
mod waiting;
