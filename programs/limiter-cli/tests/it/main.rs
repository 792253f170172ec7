//! The program, from outside: its output, its messages and its exit status.

mod common;
mod corpus;
mod formats;
#[cfg(feature = "stores")]
mod keys;
mod malformed;
mod output;
mod plot;
mod suggest;
#[cfg(feature = "stores")]
mod tls;
mod usage;
