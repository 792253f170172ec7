//! Resolutions: which entries an append merges. One loop, in the words of the contract's section on merging.

use limiter_core::store::Op;
use limiter_core::{EntryId, Limit, MAX_COST, Timestamp};

use super::{ReferenceEntry, age, longest_exact};

/// An append of the entry `new` at `now` to a log whose newest entry was at `n`. `r` is the smallest resolution of the limits, and `e` the
/// longest window of the exact ones. 0 if there is none.
#[derive(Debug)]
#[allow(missing_docs, reason = "the contract defines them")]
pub struct Append {
    pub limits: Vec<Limit>,
    pub r: u64,
    pub e: u64,
    pub n: Timestamp,
    pub now: Timestamp,
    pub new: EntryId,
}

impl Append {
    /// Returns an append under these limits.
    pub fn new(limits: Vec<Limit>, n: Timestamp, now: Timestamp, new: EntryId) -> Self {
        let resolutions = limits.iter().filter_map(Limit::resolution);
        let r = resolutions.min().unwrap_or_default().as_micros() as u64;
        let e = longest_exact(&limits);
        Self {
            limits,
            r,
            e,
            n,
            now,
            new,
        }
    }

    /// M1: merges entries, from the oldest to the newest. `name` returns a new id of the store.
    pub fn merge(
        &self,
        rules: &Rules,
        log: &mut Vec<ReferenceEntry>,
        mut name: impl FnMut() -> EntryId,
    ) {
        let mut merged: Vec<ReferenceEntry> = Vec::new();
        for u in log.drain(..) {
            let joins = |v: &mut ReferenceEntry| {
                self.r > 0 && (rules.is_due)(self, &u) && (rules.joins)(self, v, &u)
            };
            let entry = match merged.pop_if(joins) {
                Some(v) => (rules.merged)(&v, &u, name()),
                None => u,
            };
            merged.push(entry);
        }
        *log = merged;
    }

    /// M1: whether each of the limits counts both entries or neither.
    pub fn counts_alike(&self, limits: &[Limit], v: &ReferenceEntry, u: &ReferenceEntry) -> bool {
        let counts = |limit: &Limit, entry| age(entry, self.now) < limit.window().as_micros();
        limits
            .iter()
            .all(|limit| counts(limit, u) == counts(limit, v))
    }
}

/// The rules of merging. The contract has one set; the tests of the suite replace single rules, and the suite must notice.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the contract defines the rules")]
pub struct Rules {
    /// Changes the limits and the times: not in the contract.
    pub inputs: fn(&Op<'_>, &mut Append),
    /// M2: whether the entry at `u` is due.
    pub is_due: fn(&Append, &ReferenceEntry) -> bool,
    /// M1: whether `v` and `u` are in one cell, and the limits count them alike.
    pub joins: fn(&Append, &ReferenceEntry, &ReferenceEntry) -> bool,
    /// M3: the merged entry of `v` and `u`, with a new id of the store.
    pub merged: fn(&ReferenceEntry, &ReferenceEntry, EntryId) -> ReferenceEntry,
}

impl Rules {
    /// The rules of the contract.
    pub const CONTRACT: Self = Self {
        inputs: |_, _| {},
        is_due: |append, u| match append.e {
            0 => u.name == append.new,
            e => age(u, append.n) < e && age(u, append.now) >= e,
        },
        joins: |append, v, u| {
            u.at.as_micros() / append.r == v.at.as_micros() / append.r
                && append.counts_alike(&append.limits, v, u)
        },
        merged: |v, u, name| ReferenceEntry {
            name,
            id: None,
            cost: u.cost.saturating_add(v.cost).min(MAX_COST),
            ..*u
        },
    };
}
#[cfg(all(test, feature = "conformance"))]
mod tests {
    use limiter_core::store::{LogKey, Op};
    use limiter_core::{Name, Policy, SyncStore};
    use proptest::prelude::*;
    use proptest::test_runner::RngAlgorithm::ChaCha;
    use proptest::test_runner::{Config, TestRng, TestRunner};

    use super::super::{ReferenceEntry, ReferenceStore, age};
    use crate::conformance::policies;

    /// Under one policy, a log holds the cells of the longest window, one more entry for each limit, and what exact limits see.
    #[test]
    fn a_log_holds_no_more_than_the_semantics_state() {
        let times = [0, 0, 0, 1, 1, 2, 3, 7, 9, 30].map(Just);
        let step = (proptest::strategy::Union::new(times), 1..=3_u64);
        let config = Config {
            cases: 512,
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(ChaCha));
        let property = |(policy, steps): (Policy, Vec<(u64, u64)>)| {
            let (reference, log) = (ReferenceStore::new(), LogKey::new(Name::new("bound"), b""));
            let resolutions = policy
                .limits()
                .iter()
                .filter_map(limiter_core::Limit::resolution);
            let resolution = resolutions.map(|r| r.as_micros() as u64).min().unwrap_or(1);
            let exact = policy
                .longest_exact_window()
                .map_or(0, limiter_core::Window::as_micros);
            let cells = policy.longest_window().as_micros() / resolution;
            let mut now = 1_700_000_000_000_000;
            for (after, cost) in steps {
                now += after;
                let at = limiter_core::Timestamp::from_micros_saturating(now);
                let op = Op::record(b"", &policy).with_name(log.name);
                reference.apply_now(&op.with_cost(cost).at(at));
                let left = reference.entries(log);
                let seen = |entry: &&ReferenceEntry| age(entry, at) < exact;
                let most =
                    cells + 2 + (policy.limits().len() + left.iter().filter(seen).count()) as u64;
                prop_assert!(left.len() as u64 <= most, "{left:?}, at most {most}");
            }
            Ok(())
        };
        let policies = policies().prop_filter("all limits are exact", Policy::has_resolution);
        let sequences = (policies, proptest::collection::vec(step, 1..=60));
        runner.run(&sequences, property).unwrap();
    }
}
