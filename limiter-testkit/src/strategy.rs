//! Strategies of `proptest`: policies, and cases that a store, a wrapper or a front end must decide as others do.
//!
//! ```
//! use std::sync::Arc;
//! use limiter_testkit::conformance::replay;
//! use limiter_testkit::{ReferenceStore as MyStore, strategy};
//! use proptest::prelude::*;
//!
//! # let config = ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() };
//! proptest!(config, |(case in strategy::cases(1..=30))| {
//!     // Decides each step, and compares each field with the reference store's.
//!     let result = futures::executor::block_on(replay(&Arc::new(MyStore::new()), &case, |key| vec![key]));
//!     prop_assert!(result.is_ok(), "{}", result.unwrap_err());
//! });
//! ```

mod draft;
mod policies;

use std::ops::RangeInclusive;

use limiter_core::Policy;
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::case::{Case, Joint};
use draft::{busy_step, case, step};
use policies::{BUSY_WINDOWS, WINDOWS};

/// Returns policies of one to three limits, rarely of eight. Most limits have 1 to 8 units within windows of 1 to 60 µs or 72 minutes.
/// Many windows differ from the one before by a microsecond, some maxima by a unit. A few limits have up to 100 units, no reachable
/// maximum, or a resolution.
pub fn policies() -> impl Strategy<Value = Policy, Tree: Send> {
    policies::drafts(&WINDOWS, 1).prop_map(|drafts| policies::of(&drafts, 1, false).remove(0))
}

/// Returns cases with this number of steps, with up to three [policies], on two keys, through four limiters with two names.
///
/// They contain all operations, costs up to and above the maximum, repeated ids, and settlements of any earlier receipt. Time stands
/// still, steps back, or moves to just before, exactly to, or just after the end of a window. A third of the cases is traffic on one key
/// that keeps limits nearly full.
pub fn cases(steps: RangeInclusive<usize>) -> impl Strategy<Value = Case, Tree: Send> {
    let mixed = case(vec(step(2), steps.clone()), &WINDOWS, &[1]);
    let busy = case(vec(busy_step(), steps), &BUSY_WINDOWS, &[1, 10, 60_000_000]);
    prop_oneof![2 => mixed, 1 => busy]
}

/// Returns [cases] on four keys in which most calls are several operations as one.
pub fn joint_cases(steps: RangeInclusive<usize>) -> impl Strategy<Value = Case, Tree: Send> {
    let joint = (weighted(0.75), weighted(0.25), weighted(0.2));
    let step = (step(4), joint).prop_map(|((mut step, after, tag), joint)| {
        let (with_previous, is_advisory, keeps_charge) = joint;
        step.joint = Joint {
            with_previous,
            is_advisory,
            keeps_charge,
        };
        (step, after, tag)
    });
    case(vec(step, steps), &WINDOWS, &[1])
}
