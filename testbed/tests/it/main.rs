//! The tests of the testbed.

mod flaws;
mod proxy;
