#![doc = include_str!("request/guide.md")]

mod all_of;
mod call;
#[cfg(feature = "tokio")]
pub(crate) mod hold;
mod permit;
mod reset;
mod settle;
mod target;
mod verbs;
pub(crate) mod wait;

pub use all_of::{AllOf, JointDecision, Part, PartDecision, PartOutcome, Undecided};
pub use permit::{AcquirePermit, Permit, PermitDecision};
pub use reset::Reset;
pub use settle::Settle;
pub use verbs::{Acquire, Peek, ReadStatus, Record};
