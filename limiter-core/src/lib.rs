#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod clock;
mod decision;
mod error;
mod facts;
mod limit;
mod limiter;
mod now;
mod op;
mod per_limit;
mod policy;
mod ready;
#[cfg(feature = "serde")]
mod serde;
mod store;
mod text;
mod time;

pub use clock::Clock;
pub use decision::{Decision, LimitDecision, decide, decide_sized};
pub use error::{Error, ErrorKind};
pub use facts::{Entry, Facts, Outcome, Usage};
pub use limit::{Limit, MAX_COST};
pub use limiter::Limiter;
pub use now::NowStore;
pub use op::{At, EntryId, Mode, Op, Receipt, Settlement};
pub use per_limit::{MAX_LIMITS, PerLimit};
pub use policy::{Counting, Policy};
pub use ready::Timer;
#[cfg(feature = "tokio")]
pub use ready::TokioTimer;
pub use store::{DynWindowStore, WindowStore};
pub use time::{Timestamp, Window};
