//! The library that the program `limiter` runs.
//!
//! Each command has a module: [`replay`], [`generate`] and, with the feature `redis`, `key` and `load`. [`trace`]
//! reads the input files of `replay`.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod escape;
pub mod generate;
mod json;
#[cfg(feature = "redis")]
pub mod key;
#[cfg(feature = "redis")]
pub mod load;
pub mod message;
mod options;
mod progress;
#[cfg(feature = "redis")]
pub mod redis;
pub mod replay;
mod text;
pub mod trace;
pub mod usage_error;
