//! The testkit.
