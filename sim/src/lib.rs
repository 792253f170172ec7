//! The whole stack over a simulated Redis, from a seed.
//!
//! ```text
//!   history   what happens: a setting, and steps that are drawn from tables; shrunk by leaving steps out
//!      │
//!    play     processes with the shipped stack, in virtual time ──► ledger   the checker's books
//!      │                                                              ▲
//!   network   each message: its delay, its loss                       │
//!      ▼                                                              │
//!    world    the server's clock and faults, the trace ───────────────┘
//!      ▼
//!    redis    keys, commands, `struct`, the shipped scripts in Lua
//! ```
//!
//! [`Direct`] connects to a [`Redis`] without a network, for the conformance suite.

#![forbid(unsafe_code)]

mod direct;
mod history;
mod ledger;
mod network;
mod play;
mod redis;
mod world;

pub use self::direct::Direct;
pub use self::history::{Fault, History, Step};
pub use self::play::{Mistake, Outcome};
pub use self::redis::{Copy, Redis, Refusal};
pub use self::world::Tally;
