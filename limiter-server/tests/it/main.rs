//! The tests of limiter-server.

mod answers;
mod check;
mod config;
mod lifecycle;
mod rules;
mod server;
