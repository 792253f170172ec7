#![doc = include_str!("request/guide.md")]

mod acquire;
mod all_of;
mod builder;
mod call;
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
pub use permit::{Permit, PermitDecision, PermitGuard};
pub use record::Record;
pub use reset::Reset;
pub use settle::Settle;
