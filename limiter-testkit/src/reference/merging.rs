//! Resolution: which entries an append merges. A plain loop, in the words of the contract's section on merging.

use limiter_core::store::Op;
use limiter_core::{EntryId, Limit, MAX_COST, Policy, Timestamp};

use super::{ReferenceEntry, age, micros};

/// How long a log with named entries keeps them apart, and how long receipts and idempotency keys are valid if a limit has a
/// resolution. In microseconds.
pub const TEN_MINUTES: u64 = 600_000_000;

/// The rules of merging. The contract has one set; the tests of the suite replace single rules, and the suite must notice.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the contract defines the rules")]
pub struct Rules {
    /// The limits: those of the operation's policy and of the limiter's.
    pub limits: fn(&Op<'_>) -> Vec<Limit>,
    /// M1: whether an append is marked because it is named itself.
    pub marks: fn(&Op<'_>) -> bool,
    /// M1: the marks that an append takes from the newest entry, which is some cells older.
    pub inherits: fn([bool; 2], u64) -> [bool; 2],
    /// M3: `u` is the new entry, or it crossed a boundary.
    pub is_due: fn(&Append<'_>, &ReferenceEntry) -> bool,
    /// M4: the smallest resolution among the limits whose window is longer than this age.
    pub resolution: fn(&Append<'_>, u64) -> Option<u64>,
    /// M4: whether `v` and `u` are in one cell.
    pub in_one_cell: fn(&Append<'_>, &ReferenceEntry, &ReferenceEntry, u64) -> bool,
    /// M4: below which age a marked append merges nothing.
    pub apart: u64,
    /// M5: whether each limit counts both entries, or neither.
    pub counted_alike: fn(&Append<'_>, &ReferenceEntry, &ReferenceEntry) -> bool,
    /// M6: the merged entry of `v` and `u`, except for the store's id.
    pub merged: fn(&ReferenceEntry, &ReferenceEntry) -> ReferenceEntry,
    /// M6: whether a receipt of `u` still names the merged entry.
    pub keeps_names: bool,
}

impl Rules {
    /// The rules of the contract.
    pub const CONTRACT: Self = Self {
        limits: |op| {
            [Some(op.policy), op.limiter_policy]
                .into_iter()
                .flatten()
                .flat_map(Policy::limits)
                .copied()
                .collect()
        },
        marks: |op| !is_exact(&(Self::CONTRACT.limits)(op)) && (op.keep || op.id.is_some()),
        inherits: |[own, before], cells| match cells {
            0 => [own, before],
            1 => [false, own],
            _ => [false, false],
        },
        is_due: |append, u| {
            append.is_new(u) || append.has_crossed(u, &append.limits, &[TEN_MINUTES])
        },
        resolution: |append, age| longer(&append.limits, age).min(),
        in_one_cell: |_, v, u, resolution| {
            u.at.as_micros() / resolution == v.at.as_micros() / resolution
        },
        apart: TEN_MINUTES,
        counted_alike: |append, v, u| append.counts_alike(&append.limits, v, u),
        merged: |v, u| ReferenceEntry {
            id: None,
            cost: u.cost.saturating_add(v.cost).min(MAX_COST),
            ..*u
        },
        keeps_names: false,
    };

    /// M1: returns the marks that an append at `now` takes from the newest entry that is left.
    pub fn marks_after(&self, newest: Option<&ReferenceEntry>, now: Timestamp) -> [bool; 2] {
        let cells = |newest: &ReferenceEntry| {
            now.as_micros() / TEN_MINUTES - newest.at.as_micros() / TEN_MINUTES
        };
        newest.map_or([false; 2], |newest| {
            (self.inherits)(newest.marks, cells(newest))
        })
    }
}

/// Returns whether no limit has a resolution.
pub(super) fn is_exact(limits: &[Limit]) -> bool {
    limits.iter().all(|limit| limit.resolution().is_none())
}

/// Returns the resolutions of the limits whose window is longer than `age`. An exact limit has 0.
pub fn longer(limits: &[Limit], age: u64) -> impl Iterator<Item = u64> {
    let longer = limits
        .iter()
        .filter(move |limit| limit.window().as_micros() > age);
    longer.map(|limit| limit.resolution().map_or(0, micros))
}

/// An append at `now` to a log whose newest entry was at `before`.
#[derive(Debug)]
#[allow(missing_docs, reason = "the contract defines them")]
pub struct Append<'a> {
    pub op: &'a Op<'a>,
    pub limits: Vec<Limit>,
    pub before: Timestamp,
    pub now: Timestamp,
    pub new: ReferenceEntry,
}

impl Append<'_> {
    /// M2 and M6: merges entries, from the oldest to the newest. `name` returns a new id of the store.
    pub fn merge(
        &self,
        rules: &Rules,
        log: &mut Vec<ReferenceEntry>,
        mut name: impl FnMut() -> EntryId,
    ) {
        let mut merged: Vec<ReferenceEntry> = Vec::new();
        for u in log.drain(..) {
            match merged
                .pop_if(|v| (rules.is_due)(self, &u) && self.cannot_tell_apart(rules, v, &u))
            {
                Some(v) => {
                    let name = if rules.keeps_names { u.name } else { name() };
                    merged.push(ReferenceEntry {
                        name,
                        ..(rules.merged)(&v, &u)
                    });
                }
                None => merged.push(u),
            }
        }
        *log = merged;
    }

    /// M4 and M5: both are in one cell, and each limit counts both or neither.
    fn cannot_tell_apart(&self, rules: &Rules, v: &ReferenceEntry, u: &ReferenceEntry) -> bool {
        let is_apart = age(u, self.now) < rules.apart && self.new.marks != [false; 2];
        let resolution = (rules.resolution)(self, age(u, self.now))
            .filter(|_| !is_apart)
            .unwrap_or(0);
        resolution > 0
            && (rules.in_one_cell)(self, v, u, resolution)
            && (rules.counted_alike)(self, v, u)
    }

    /// Returns whether the operation appended this entry.
    pub fn is_new(&self, u: &ReferenceEntry) -> bool {
        u.name == self.new.name
    }

    /// Returns whether `u` crossed the end of a window, or one of these ages.
    pub fn has_crossed(&self, u: &ReferenceEntry, limits: &[Limit], ages: &[u64]) -> bool {
        let mut boundaries = limits
            .iter()
            .map(|limit| limit.window().as_micros())
            .chain(ages.iter().copied());
        boundaries.any(|b| u.at <= self.before && age(u, self.before) < b && age(u, self.now) >= b)
    }

    /// Returns whether each limit counts both entries, or neither.
    pub fn counts_alike(&self, limits: &[Limit], v: &ReferenceEntry, u: &ReferenceEntry) -> bool {
        let counts = |limit: &Limit, entry: &ReferenceEntry| {
            age(entry, self.now) < limit.window().as_micros()
        };
        limits
            .iter()
            .all(|limit| counts(limit, u) == counts(limit, v))
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use std::cell::Cell;

    use limiter_core::store::LogKey;
    use limiter_core::{Name, SyncStore, policy};
    use proptest::prelude::*;
    use proptest::test_runner::RngAlgorithm::ChaCha;
    use proptest::test_runner::{Config, TestRng, TestRunner};

    use super::super::{ReferenceStore, cap};
    use super::*;
    use crate::conformance::policies;

    /// Returns the times and costs that remain if every entry that no limit tells apart from the one before it merges.
    fn folded(log: &[ReferenceEntry], limits: &[Limit], now: Timestamp) -> Vec<(Timestamp, u64)> {
        let mut groups: Vec<(&ReferenceEntry, u64)> = Vec::new();
        let new = ReferenceEntry {
            marks: [false; 2],
            ..log[log.len() - 1]
        };
        let policy = policy!("1/1s");
        let append = Append {
            op: &Op::record(b"", &policy),
            limits: limits.to_vec(),
            before: now,
            now,
            new,
        };
        for entry in log {
            match groups
                .last_mut()
                .filter(|(last, _)| append.cannot_tell_apart(&Rules::CONTRACT, last, entry))
            {
                Some((last, cost)) => (*last, *cost) = (entry, *cost + entry.cost),
                None => groups.push((entry, entry.cost)),
            }
        }
        groups
            .into_iter()
            .map(|(last, cost)| (last.at, cost))
            .collect()
    }

    /// With one policy, merging all due entries equals a fold over the whole log while nothing is named. With named entries,
    /// the log holds no more than the semantics state.
    #[test]
    fn under_one_policy_the_whole_log_is_folded() {
        let times = [0, 0, 0, 1, 1, 2, 3, 7, 9, 30, 599_999_990].map(Just);
        let step = (proptest::strategy::Union::new(times), 1..=3_u64, 0..8_u8);
        let config = Config {
            cases: 512,
            failure_persistence: None,
            ..Config::default()
        };
        let (mut runner, merges) = (
            TestRunner::new_with_rng(config, TestRng::deterministic_rng(ChaCha)),
            Cell::new(0),
        );
        let property = |(policy, names, steps): (Policy, bool, Vec<(u64, u64, u8)>)| {
            let (reference, log, mut now) = (
                ReferenceStore::new(),
                LogKey::new(Name::new("fold"), b""),
                1_700_000_000_000_000,
            );
            let (limits, mut marked_until) = (policy.limits(), 0);
            for (after, cost, kind) in steps {
                now += after;
                let at = Timestamp::from_micros_saturating(now);
                let mut before = reference.entries(log);
                let mut op = Op::record(b"", &policy)
                    .with_name(log.name)
                    .with_cost(cost)
                    .at(at);
                op.keep = names && kind == 0;
                reference.apply_now(&op);
                let left = reference.entries(log);
                let newest = left[left.len() - 1];
                if newest.marks != [false; 2] {
                    marked_until = now;
                }
                before.push(ReferenceEntry { cost, ..newest });
                before.retain(|entry| age(entry, at) < policy.longest_window().as_micros());
                cap(&mut before, policy.largest_max());
                if !names {
                    let left: Vec<_> = left.iter().map(|entry| (entry.at, entry.cost)).collect();
                    prop_assert_eq!(left, folded(&before, limits, at));
                }
                merges.set(merges.get() + before.len() - left.len());
                let most = |limit: &Limit| {
                    let cells = |each| (limit.window().as_micros() / micros(each)) as usize + 2;
                    let counted = || {
                        left.iter()
                            .filter(|entry| age(entry, at) < limit.window().as_micros())
                            .count()
                    };
                    limit.resolution().map_or_else(counted, cells)
                };
                let young = left
                    .iter()
                    .filter(|entry| age(entry, at) < TEN_MINUTES)
                    .count();
                let marked = if marked_until > 0 && now - marked_until < TEN_MINUTES {
                    young
                } else {
                    0
                };
                prop_assert!(
                    left.len() <= limits.iter().map(most).fold(marked, usize::saturating_add)
                );
            }
            Ok(())
        };
        let policies = policies().prop_filter("all limits are exact", Policy::has_resolution);
        runner
            .run(
                &(
                    policies,
                    any::<bool>(),
                    proptest::collection::vec(step, 1..=60),
                ),
                property,
            )
            .unwrap();
        assert!(merges.get() > 1_000, "{merges:?}");
    }
}
