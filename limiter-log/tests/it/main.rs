//! The tests of the crate, in one program.

mod combining;
mod conformance;
mod map;
