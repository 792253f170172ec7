//! The whole stack over a simulated Redis, from a seed.
//!
//! ```text
//!   history   what happens: a setting, and steps that are drawn from tables; shrunk by leaving steps out
//!      │
//!    play     the calls and the slots, in virtual time
//!      │
//!   process   the shipped stack; each of its decisions is checked ──► ledger   the checker's books: what each log must hold
//!      │                                                              ▲
//!    gate     the calls that a breaker lets pass                    audit      what each command did
//!      │                                                              ▲
//!   network   each message: its delay, its loss                       │
//!      ▼                                                              │
//!    world    the server's clock and faults, the trace ───────────────┘
//!      ▼
//!    redis    keys, commands, `struct`, the shipped scripts in Lua
//! ```
//!
//! The books share no code with a store: they are lists of entries with a time, a cost and an id.
//!
//! In front of limiter-log and a `table`, or of a `client` and a server's `memory`, the same histories run in the same world.
//!
//! [`Direct`] connects to a simulated Redis without a network, for the conformance suite.

#![forbid(unsafe_code)]

mod audit;
mod client;
mod clocks;
mod direct;
mod gate;
mod history;
mod ledger;
mod memory;
mod network;
mod play;
mod process;
mod redis;
mod table;
mod world;

pub use self::direct::Direct;
pub use self::history::{History, Server};
pub use self::play::{Mistake, Outcome, play_many};
