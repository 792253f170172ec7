//! The tests of limiter-server.

mod answers;
mod ask;
mod check;
mod client;
mod config;
mod corpus;
mod envoy;
mod floods;
mod grpc;
mod guard;
mod http;
mod lifecycle;
mod openapi;
mod options;
mod own_limits;
mod program;
mod python;
mod readme;
mod reload;
mod rules;
mod server;
mod state;
mod stores;
mod tools;
mod v1;
mod xds;
