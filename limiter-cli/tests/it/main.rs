//! The program, from outside: its output, its messages and its exit status.

mod common;
mod corpus;
mod formats;
mod golden;
#[cfg(feature = "redis")]
mod load;
mod malformed;
mod output;
mod plot;
#[cfg(feature = "redis")]
mod redis_keys;
#[cfg(feature = "redis")]
mod redis_tls;
mod usage;
