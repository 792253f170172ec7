//! Items for this workspace's crates only, as are methods that are hidden from the documentation. The crates pin each other with `=`
//! versions, so both may change in any release.

pub use crate::decision::{SizedFacts, decide_sized};
pub use crate::error::excerpt;
pub use crate::log::search::gallop;
pub use crate::name::percent_encode;
pub use crate::policy::resolution::RESOLUTIONS;
use crate::policy::{Policy, parse};
#[cfg(feature = "tokio")]
pub use crate::request::hold::{Moment, set_system_clock};
pub use crate::request::wait::within;

/// The numbered contract in the docs of [`WindowStore`](crate::WindowStore). The conformance suite quotes it in its failures.
pub const CONTRACT: &str = include_str!("store/contract.md");

/// Parses the literal of `policy!`.
///
/// # Panics
/// If the text is malformed. `policy!` calls this in a `const` block, so the panic is a compile error.
#[allow(
    clippy::panic,
    reason = "`policy!` calls it in a const block, so the panic is a compile error"
)]
#[must_use]
pub const fn policy_from_literal(text: &str) -> Policy {
    match parse::limits(text.as_bytes()) {
        Ok((limits, count)) => Policy::from_checked(limits, count),
        Err(error) => panic!("{}", error.reason.expected()),
    }
}
