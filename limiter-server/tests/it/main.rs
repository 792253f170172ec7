//! The tests of limiter-server.

mod answers;
mod check;
mod config;
mod corpus;
mod envoy;
mod grpc;
mod http;
mod lifecycle;
mod python;
mod quota;
mod readme;
mod reload;
mod rules;
mod server;
mod stores;
mod tools;
mod windows;
