//! The tests of the crate, in one program.

mod conformance;
mod store;
mod threads;
