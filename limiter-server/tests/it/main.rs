//! The tests of limiter-server.

mod check;
mod config;
mod corpus;
mod envoy;
mod lifecycle;
mod python;
mod reload;
mod rules;
mod server;
mod tools;
mod windows;
