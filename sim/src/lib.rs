//! The whole stack over a simulated Redis, from a seed.
//!
//! ```text
//!   history   what happens: a setting, and steps that are drawn from tables; shrunk by leaving steps out
//!      │
//!    play     the calls, in virtual time
//!      │
//!   process   the shipped stack; each of its decisions is checked ──► ledger   the checker's books: what each log must hold
//!      │                                                              ▲
//!   network   each message: its delay, its loss                       │
//!      ▼                                                              │
//!    world    the server's clock and faults, the trace ───────────────┘
//!      ▼
//!    redis    keys, commands, `struct`, the shipped scripts in Lua
//! ```
//!
//! In front of limiter-log and a `table`, the same histories run in the same world.
//!
//! [`Direct`] connects to a simulated Redis without a network, for the conformance suite.

#![forbid(unsafe_code)]

mod direct;
mod history;
mod ledger;
mod network;
mod play;
mod process;
mod redis;
mod table;
mod world;

pub use self::direct::Direct;
pub use self::history::History;
pub use self::play::{Mistake, Outcome, play_many};
pub use self::world::Tally;
