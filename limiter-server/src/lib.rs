//! The server behind the program `limiter-server`: Envoy's rate limit service, and the whole API for programs in any language.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod check;
pub mod config;
pub mod denied;
pub mod guard;
pub mod rules;
