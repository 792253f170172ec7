//! What only this workspace's crates use. They pin each other with `=` versions, so this module may change at any time.

use crate::decision::Decision;
pub use crate::decision::SizedFacts;
use crate::limit::Limit;
use crate::op::Op;
use crate::parse;
use crate::policy::Policy;
use crate::time::Timestamp;

/// The numbered contract in the docs of [`WindowStore`](crate::WindowStore). The conformance suite quotes it in its failures.
pub const CONTRACT: &str = include_str!("contract.md");

/// Makes a policy from a literal for `policy!`, in the compiler.
///
/// # Panics
/// If the text is malformed, which makes it a compile error in a `const` block.
#[allow(clippy::panic, reason = "it runs in the compiler only: `policy!` calls it in a const block")]
#[must_use]
pub const fn policy_from_literal(text: &str) -> Policy {
    match parse::limits(text.as_bytes()) {
        Ok(limits) => Policy::from_checked(limits),
        Err(error) => panic!("{}", error.why.expected()),
    }
}

/// As [`decide`](crate::store::decide), for `N` limits: with a number that the compiler knows, only those are copied.
#[inline(always)]
pub fn decide_sized<const N: usize>(op: &Op<'_>, limits: &[Limit; N], facts: SizedFacts<N>) -> Decision {
    crate::decision::decide_sized(op, limits, facts)
}

/// Returns a policy's limits if there are exactly `N`.
#[inline(always)]
#[must_use]
pub fn limits_array<const N: usize>(policy: &Policy) -> Option<&[Limit; N]> {
    policy.limits_array()
}

/// Returns the leading zeros of the longest window's microseconds, computed once because some processors take long.
#[inline(always)]
#[must_use]
pub fn longest_window_zeros(policy: &Policy) -> u8 {
    policy.longest_window_zeros()
}

/// Returns the point in time in the lowest 53 bits, for a store that keeps something else in the others.
#[inline(always)]
#[must_use]
pub const fn timestamp_from_low_bits(bits: u64) -> Timestamp {
    Timestamp::from_low_bits(bits)
}
