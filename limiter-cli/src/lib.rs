//! The parts of the program `limiter`: traces are read ([`trace`]), decided on ([`replay`]), and shown ([`jsonl`],
//! [`summary`], [`plot`]). With the feature `redis`, Redis may keep the logs. The program itself parses its arguments, puts
//! these together, and has the commands on live keys.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod escape;
pub mod generate;
pub mod jsonl;
pub mod plot;
#[cfg(feature = "redis")]
pub mod redis;
pub mod replay;
pub mod summary;
pub mod text;
pub mod trace;
