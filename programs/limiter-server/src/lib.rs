//! The server behind the program `limiter-server`: Envoy's rate limit service, and the whole API for programs in any language.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(not(unix))]
compile_error!("limiter-server needs signals and sockets of Unix");

mod admin;
mod changes;
pub mod check;
pub mod config;
pub mod denied;
mod detailed;
pub mod grpc;
pub mod guard;
mod health;
pub mod http;
mod interface;
mod listener;
mod metrics;
pub mod migration;
mod object;
mod occasional;
pub mod options;
mod page;
pub mod proto;
pub mod reload;
pub mod rules;
pub mod run;
pub mod service;
pub mod state;
pub mod store;
mod tls;
pub mod xds;
