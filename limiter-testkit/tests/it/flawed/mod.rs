//! Stores with one flaw each, of kinds that no mutation of a log makes: keys, clocks, expiry, handles, concurrency and cancellation.
//!
//! `scripts/mutants` checks that the suite finds wrong logs.

mod store;
mod table;

use limiter_core::Timestamp;
use limiter_core::store::{Facts, JointFacts, JointOp, Op, Settlement};
use limiter_testkit::conformance::{Phase, Sentence};

pub(crate) use store::{Flawed, StoreUnderTest};
pub(crate) use table::{FLAWS, RIGHT};

#[derive(Debug)]
pub(crate) struct Flaw {
    /// A phase that always finds the flaw.
    pub(crate) phase: Phase,
    /// A sentence that the failure cites.
    pub(crate) sentence: Sentence,
    pub(crate) name: &'static str,
    change: Change,
}

/// What a flaw changes.
#[derive(Debug)]
enum Change {
    /// Code that asks for the name of the flaw.
    Code,
    /// The name and the key of a log.
    Log(fn(&str, &[u8]) -> (String, Vec<u8>)),
    /// The store's clock.
    Clock(fn(u64) -> u64),
    /// An operation, on a handle with this number.
    Op(fn(&mut Op<'_>, u8)),
    Facts(fn(&mut Facts)),
    Settlement(fn(&mut Settlement<'_>)),
    /// When a log expires after an operation.
    Expiry(fn(&Expiry<'_>) -> u64),
    /// Several operations as one.
    Together(fn(&Flawed, &[JointOp<'_>]) -> Option<JointFacts>),
}

/// An operation, and when its log expires. Times are in microseconds.
struct Expiry<'a> {
    op: &'a Op<'a>,
    /// The time of the operation, and the store's clock.
    now: u64,
    clock: Timestamp,
    /// When the log expired before the operation (0 if there was none), and when the contract lets it expire now.
    before: u64,
    right: u64,
}
