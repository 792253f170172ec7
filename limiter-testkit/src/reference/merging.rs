//! Resolution: which entries an append merges. A plain loop, in the words of the contract's section on merging.

use limiter_core::{EntryId, Limit, MAX_COST, Timestamp};

use super::{ReferenceEntry, age, micros};

/// How long a log with named entries keeps them apart, and how long receipts and idempotency keys are valid if a limit has a
/// resolution. In microseconds.
pub(super) const TEN_MINUTES: u64 = 600_000_000;

/// M1: returns the marks that an append at `now` takes from the newest entry that is left.
pub(super) fn marks_after(newest: Option<&ReferenceEntry>, now: Timestamp) -> [bool; 2] {
    let Some(newest) = newest else { return [false; 2] };
    let [own, before] = newest.marks;
    match now.as_micros() / TEN_MINUTES - newest.at.as_micros() / TEN_MINUTES {
        0 => [own, before],
        1 => [false, own],
        _ => [false, false],
    }
}

/// An append at `now` to a log whose newest entry was at `before`.
pub(super) struct Append<'a> {
    /// The limits of the operation's policy and of the limiter's.
    pub(super) limits: &'a [Limit],
    pub(super) before: Timestamp,
    pub(super) now: Timestamp,
    pub(super) new: ReferenceEntry,
}

impl Append<'_> {
    /// M2 and M6: merges entries, from the oldest to the newest. `name` returns a new id of the store.
    pub(super) fn merge(&self, log: &mut Vec<ReferenceEntry>, mut name: impl FnMut() -> EntryId) {
        let mut merged: Vec<ReferenceEntry> = Vec::new();
        for u in log.drain(..) {
            match merged.pop_if(|v| self.is_due(&u) && self.cannot_tell_apart(v, &u)) {
                Some(v) => {
                    let cost = u.cost.saturating_add(v.cost).min(MAX_COST);
                    merged.push(ReferenceEntry { name: name(), id: None, cost, ..u });
                }
                None => merged.push(u),
            }
        }
        *log = merged;
    }

    /// M3: `u` is the new entry, or it crossed a boundary.
    fn is_due(&self, u: &ReferenceEntry) -> bool {
        let windows = self.limits.iter().map(|limit| limit.window().as_micros());
        let has_crossed =
            |boundary: u64| u.at <= self.before && age(u, self.before) < boundary && age(u, self.now) >= boundary;
        u.name == self.new.name || windows.chain([TEN_MINUTES]).any(has_crossed)
    }

    /// M4 and M5: both are in one cell, and each limit counts both or neither.
    fn cannot_tell_apart(&self, v: &ReferenceEntry, u: &ReferenceEntry) -> bool {
        let cell = |entry: &ReferenceEntry, resolution| entry.at.as_micros() / resolution;
        let counts = |limit: &Limit, entry: &ReferenceEntry| age(entry, self.now) < limit.window().as_micros();
        let resolution = self.resolution(age(u, self.now));
        resolution > 0
            && cell(u, resolution) == cell(v, resolution)
            && self.limits.iter().all(|limit| counts(limit, u) == counts(limit, v))
    }

    /// M4: returns the smallest resolution among the limits whose window is longer than `age`. An exact limit has 0.
    fn resolution(&self, age: u64) -> u64 {
        let is_apart = age < TEN_MINUTES && self.new.marks != [false; 2];
        let longer = self.limits.iter().filter(|limit| limit.window().as_micros() > age);
        let smallest = longer.map(|limit| limit.resolution().map_or(0, micros)).min();
        smallest.filter(|_| !is_apart).unwrap_or(0)
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use std::cell::Cell;

    use limiter_core::Policy;
    use limiter_core::store::{LogKey, Op};
    use limiter_core::{Name, SyncStore};
    use proptest::prelude::*;
    use proptest::test_runner::RngAlgorithm::ChaCha;
    use proptest::test_runner::{Config, TestRng, TestRunner};

    use super::super::{ReferenceStore, cap};
    use super::*;
    use crate::conformance::policies;

    /// Returns the time and the cost of what is left if every entry that no limit tells apart from the one before it merges.
    fn folded(log: &[ReferenceEntry], limits: &[Limit], now: Timestamp) -> Vec<(Timestamp, u64)> {
        let mut groups: Vec<(&ReferenceEntry, u64)> = Vec::new();
        let new = ReferenceEntry { marks: [false; 2], ..log[log.len() - 1] };
        let append = Append { limits, before: now, now, new };
        for entry in log {
            match groups.last_mut().filter(|(last, _)| append.cannot_tell_apart(last, entry)) {
                Some((last, cost)) => (*last, *cost) = (entry, *cost + entry.cost),
                None => groups.push((entry, entry.cost)),
            }
        }
        groups.into_iter().map(|(last, cost)| (last.at, cost)).collect()
    }

    /// Under one policy, merging what is due equals a fold over the whole log while nothing is named. With named entries, the log
    /// holds no more than the semantics state.
    #[test]
    fn under_one_policy_the_whole_log_is_folded() {
        let times = [0, 0, 0, 1, 1, 2, 3, 7, 9, 30, 599_999_990].map(Just);
        let step = (proptest::strategy::Union::new(times), 1..=3_u64, 0..8_u8);
        let config = Config { cases: 512, failure_persistence: None, ..Config::default() };
        let (mut runner, merges) = (TestRunner::new_with_rng(config, TestRng::deterministic_rng(ChaCha)), Cell::new(0));
        let property = |(policy, names, steps): (Policy, bool, Vec<(u64, u64, u8)>)| {
            let (reference, log, mut now) =
                (ReferenceStore::new(), LogKey::new(Name::new("fold"), b""), 1_700_000_000_000_000);
            let (limits, mut marked_until) = (policy.limits(), 0);
            for (after, cost, kind) in steps {
                now += after;
                let at = Timestamp::from_micros_saturating(now);
                let mut before = reference.entries(log);
                let mut op = Op::record(b"", &policy).with_name(log.name).with_cost(cost).at(at);
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
                    let counted = || left.iter().filter(|entry| age(entry, at) < limit.window().as_micros()).count();
                    limit.resolution().map_or_else(counted, cells)
                };
                let young = left.iter().filter(|entry| age(entry, at) < TEN_MINUTES).count();
                let marked = if marked_until > 0 && now - marked_until < TEN_MINUTES { young } else { 0 };
                prop_assert!(left.len() <= limits.iter().map(most).fold(marked, usize::saturating_add));
            }
            Ok(())
        };
        let policies = policies().prop_filter("all limits are exact", Policy::has_resolution);
        runner.run(&(policies, any::<bool>(), proptest::collection::vec(step, 1..=60)), property).unwrap();
        assert!(merges.get() > 1_000, "{merges:?}");
    }
}
