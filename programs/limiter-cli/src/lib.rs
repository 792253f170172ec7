//! The library that the program `limiter` runs.
//!
//! Each command has a module: [`replay`], [`suggest`] and, with the feature `stores`, `key`. [`trace`] reads the input files of the first
//! two.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod escape;
mod json;
#[cfg(feature = "stores")]
pub mod key;
pub mod message;
mod options;
mod pass;
mod progress;
pub mod replay;
#[cfg(feature = "stores")]
pub mod store;
pub mod suggest;
mod text;
pub mod trace;
pub mod usage_error;
