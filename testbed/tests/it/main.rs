//! The tests of the testbed.

mod flaws;
