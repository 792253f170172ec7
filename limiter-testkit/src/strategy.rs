//! Strategies of [`proptest`]: policies, and cases that a store, a wrapper or a front end must decide as others do.
//!
//! A value that fails is shrunk: first its policies, then its steps.
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

mod generate;
mod shrink;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use limiter_core::Policy;
use proptest::strategy::{NewTree, Strategy};
use proptest::test_runner::{TestRng, TestRunner};

use crate::conformance::Case;
use shrink::Shrunk;
pub use shrink::Tree;

/// Returns policies of one to three limits, rarely of eight. Most limits have 1 to 8 units within windows of 1 to 60 µs or 72 minutes.
/// Many windows differ from the one before by a microsecond, some maxima by a unit. A few limits have up to 100 units, no reachable
/// maximum, a resolution or a lease.
pub fn policies() -> impl Strategy<Value = Policy> {
    Generated::by(|random| generate::policies(random, 1, None).remove(0))
}

/// Returns cases with this number of steps, with up to three [policies], on two keys, through four limiters with two names.
///
/// They contain all operations, costs up to and above the maximum, repeated ids, and settlements of any earlier receipt. Time stands
/// still, steps back, or moves to just before, exactly to, or just after the end of a window. Up to half of the cases are traffic on one
/// key that keeps limits nearly full; long cases more often than short ones.
pub fn cases(steps: RangeInclusive<usize>) -> impl Strategy<Value = Case, Tree = Tree<Case>> {
    Generated::by(move |random| generate::case(random, steps.clone(), 2))
}

/// Returns [cases] on four keys in which most calls are several operations as one.
pub fn joint_cases(steps: RangeInclusive<usize>) -> impl Strategy<Value = Case, Tree = Tree<Case>> {
    Generated::by(move |random| {
        let mut case = generate::case(random, steps.clone(), 4);
        generate::join(random, &mut case);
        case
    })
}

/// Values that shrink by [`Shrunk`].
struct Generated<T>(Arc<dyn Fn(&mut TestRng) -> T + Send + Sync>);

impl<T> Generated<T> {
    fn by(make: impl Fn(&mut TestRng) -> T + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }
}

impl<T> fmt::Debug for Generated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generated").finish_non_exhaustive()
    }
}

impl<T: Shrunk> Strategy for Generated<T> {
    type Tree = Tree<T>;
    type Value = T;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        Ok(Tree::new((self.0)(runner.rng())))
    }
}
