//! The tests of limiter-server.

mod check;
mod config;
mod lifecycle;
mod reload;
mod rules;
mod server;
