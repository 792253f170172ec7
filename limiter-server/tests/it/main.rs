//! The tests of limiter-server.

mod check;
mod config;
mod corpus;
mod lifecycle;
mod reload;
mod rules;
mod server;
