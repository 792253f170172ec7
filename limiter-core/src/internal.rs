//! Items for this workspace's crates only. The crates pin each other with `=` versions, so this module may change in any
//! release.

pub use crate::decision::{SizedFacts, decide_sized};
pub use crate::error::excerpt;
use crate::log::Log;
pub use crate::log::search::gallop;
use crate::name::Name;
pub use crate::name::percent_encode;
use crate::policy::Policy;
use crate::policy::limit::Limit;
use crate::policy::parse;
pub use crate::policy::resolution::RESOLUTIONS;
use crate::policy::time::Timestamp;
use crate::store::facts::Facts;
use crate::store::op::Op;

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

/// Returns an operation's facts if it repeats another.
#[must_use]
pub fn repeated(log: &Log, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
    log.repeated(op, now)
}

/// Returns a policy's limits as an array. `None` unless there are exactly `N`, all of them exact.
#[inline(always)]
#[must_use]
pub fn limits_array<const N: usize>(policy: &Policy) -> Option<&[Limit; N]> {
    policy.limits_array()
}

/// Returns the timestamp in the lowest 53 bits. The higher bits are ignored, so a store can use them for other data.
#[inline(always)]
#[must_use]
pub const fn timestamp_from_low_bits(bits: u64) -> Timestamp {
    Timestamp::from_low_bits(bits)
}

/// Returns a log of entries with these times and costs, oldest first. Their ids are successive numbers, beginning with `first`.
#[must_use]
pub fn numbered_log(first: u64, entries: impl Iterator<Item = (Timestamp, u64)>) -> Log {
    Log::numbered(first, entries)
}

/// Returns the number of a log's first entry, and the times and costs of its entries, oldest first, if
/// [`numbered_log`] returns an equal log for them. `None` for a log with idempotency keys, merged entries, gaps in its numbers or
/// its own ids.
pub fn numbered_entries(log: &Log) -> Option<(u64, impl Iterator<Item = (Timestamp, u64)>)> {
    log.numbered_entries()
}

/// Sets the time from which the store may delete a log.
pub fn set_expiry(log: &mut Log, expires_at: Timestamp) {
    log.set_expiry(expires_at);
}

/// Returns the names that the process has used. Each is at the index of its [id](Name::id).
#[must_use]
pub fn names() -> Vec<Name> {
    Name::all()
}
