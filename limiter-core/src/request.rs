//! The builders that a limiter's methods return. Each is also a future.

mod call;
mod many;
mod permit;
mod reset;
mod run;
mod settle;
mod together;
mod verb;
mod view;
mod wait;

pub use many::AcquireMany;
pub use permit::{Permit, PermitRequest, SettleOnDrop};
pub use reset::Reset;
pub use run::Request;
pub use settle::Settle;
pub use together::{Background, Part, PartOutcome, Together};
