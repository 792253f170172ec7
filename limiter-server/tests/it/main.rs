//! The tests of limiter-server.

mod check;
mod config;
mod rules;
