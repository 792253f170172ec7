//! The tests of limiter-server.

mod check;
mod config;
mod lifecycle;
mod rules;
mod server;
