//! The tests of limiter-server.

mod config;
mod rules;
