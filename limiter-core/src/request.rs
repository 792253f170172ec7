#![doc = include_str!("request/guide.md")]

mod acquire;
mod all_of;
mod builder;
mod call;
#[cfg(feature = "tokio")]
mod hold;
mod peek;
mod permit;
mod record;
mod reset;
mod settle;
mod view;
mod wait;

pub use acquire::{Acquire, AcquirePermit};
pub use all_of::{AllOf, JointDecision, JointDenied, Part, PartOutcome};
pub use peek::{Peek, ReadStatus};
pub use permit::{Permit, PermitDecision, PermitGuard, Renew};
pub use record::Record;
pub use reset::Reset;
pub use settle::Settle;

/// For middleware: an [`AllOf`] that leaves errors in its parts, moves into a task, and settles its charges one by one.
pub mod joint {
    pub use super::all_of::{
        again, decide, decision_into_owned, into_owned, parts_mut, refund, take_errors, try_decide,
    };
}
