//! The tests of the crate, in one program.

mod access;
mod cluster;
mod commands;
mod conformance;
mod cost;
mod eviction;
mod expiry;
mod faults;
mod held;
mod reconnecting;
mod scan;
mod sentinel;
mod simulated;
mod support;
mod tls;
