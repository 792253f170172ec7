#![doc = include_str!("request/guide.md")]

mod all_of;
mod call;
mod output;
mod permit;
mod reset;
mod run;
mod settle;
mod verb;
mod view;
mod wait;

pub use all_of::{AllOf, JointDecision, JointDenied, Part, PartOutcome};
pub use permit::{Permit, PermitDecision, PermitGuard};
pub use reset::Reset;
pub use run::Request;
pub use settle::Settle;
