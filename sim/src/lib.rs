//! The whole stack over a simulated Redis, from a seed.

#![forbid(unsafe_code)]

mod direct;
mod redis;

pub use self::direct::Direct;
pub use self::redis::{Copy, Redis, Refusal};
