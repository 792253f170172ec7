//! Items for this workspace's crates only, as are methods that are hidden from the documentation. The crates pin each other with `=`
//! versions, so both may change in any release.

pub use crate::decision::{SizedFacts, decide_sized};
pub use crate::error::excerpt;
pub use crate::log::search::gallop;
pub use crate::name::percent_encode;
pub use crate::policy::parse::policy_from_literal;
pub use crate::policy::resolution::RESOLUTIONS;
#[cfg(feature = "tokio")]
pub use crate::request::hold::{Moment, set_system_clock};
pub use crate::request::wait::within;

/// The numbered contract in the docs of [`WindowStore`](crate::WindowStore). The conformance suite quotes it in its failures.
pub const CONTRACT: &str = include_str!("store/contract.md");
