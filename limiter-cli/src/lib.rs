//! The parts of the program `limiter`: traces are read ([`trace`]), decided on ([`replay`]), and shown ([`jsonl`],
//! [`summary`], [`plot`]). The program itself only parses its arguments and puts these together.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod generate;
pub mod jsonl;
pub mod plot;
pub mod replay;
pub mod summary;
pub mod text;
pub mod trace;
