#![doc = include_str!("request/guide.md")]

pub(crate) mod all_of;
mod call;
#[cfg(feature = "tokio")]
pub(crate) mod hold;
mod permit;
mod reset;
mod settle;
mod target;
mod verbs;
pub(crate) mod wait;

pub use all_of::{AllOf, JointDecision, Part, PartDecision, PartOutcome};
#[cfg(not(feature = "tokio"))]
pub use permit::NeedsTokio;
pub use permit::{AcquirePermit, Permit, PermitDecision};
pub use reset::Reset;
pub use settle::Settle;
pub use verbs::{Acquire, Peek, ReadStatus, Record};

/// For middleware: an [`AllOf`] that leaves errors in its parts, moves into a task, and settles its charges one by one.
pub mod joint {
    pub use super::all_of::{Undecided, again, part_mut, refund};
}
