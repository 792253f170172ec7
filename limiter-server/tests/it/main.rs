//! The tests of limiter-server.

mod check;
mod config;
mod reload;
mod rules;
