//! Resolution: which entries an append merges. A plain loop over all pairs, in the words of the contract's section on merging.

use std::collections::HashSet;

use limiter_core::{EntryId, Limit, MAX_COST, Timestamp};

use super::{OracleEntry, age, micros};

/// How long an entry is kept, and how long receipts and idempotency keys are valid if a limit has a resolution. In microseconds.
pub(super) const KEPT_FOR: u64 = 600_000_000;

/// An append at `now` to a log whose newest entry was at `before`.
pub(super) struct Append<'a> {
    /// The limits of the operation's policy and of the limiter's.
    pub(super) limits: &'a [Limit],
    pub(super) before: Timestamp,
    pub(super) now: Timestamp,
    /// The new entry.
    pub(super) new: EntryId,
}

impl Append<'_> {
    /// M2 and M6: merges entries, from the oldest to the newest. `name` returns a new id of the store.
    pub(super) fn merge(&self, log: &mut Vec<OracleEntry>, mut name: impl FnMut() -> EntryId) {
        let ceases = |entry: &&OracleEntry| !is_kept(entry, self.now) && is_kept(entry, self.before);
        let mut ceased: HashSet<EntryId> = log.iter().filter(ceases).map(|entry| entry.name).collect();
        let mut newer = 0;
        while newer < log.len() {
            let u = log[newer];
            let is_free = |entry: &OracleEntry| !is_kept(entry, self.now);
            let older = log[..newer].iter().rposition(is_free).filter(|_| is_free(&u));
            let pair = older.map(|older| (older, log[older]));
            let Some((older, v)) =
                pair.filter(|(_, v)| self.may_merge(v, &u, &ceased) && self.cannot_tell_apart(v, &u))
            else {
                newer += 1;
                continue;
            };
            let merged = OracleEntry {
                name: name(),
                id: None,
                kept: false,
                cost: u.cost.saturating_add(v.cost).min(MAX_COST),
                ..u
            };
            // It counts as an entry that ceased to be kept if one of its parts did.
            if ceased.contains(&u.name) || ceased.contains(&v.name) {
                ceased.insert(merged.name);
            }
            log[newer] = merged;
            // The entry after the merged one is now at this index.
            log.remove(older);
        }
    }

    /// M3: `u` is the new entry, or it crossed the end of a window, or one of the two ceased to be kept.
    fn may_merge(&self, v: &OracleEntry, u: &OracleEntry, ceased: &HashSet<EntryId>) -> bool {
        let has_crossed = |limit: &Limit| counts(limit, u, self.before) && !counts(limit, u, self.now);
        u.name == self.new || self.limits.iter().any(has_crossed) || [u, v].iter().any(|e| ceased.contains(&e.name))
    }

    /// M4 and M5: both are in one cell, and each limit counts both or neither.
    fn cannot_tell_apart(&self, v: &OracleEntry, u: &OracleEntry) -> bool {
        let cell = |entry: &OracleEntry, resolution| entry.at.as_micros() / resolution;
        let resolution = self.resolution(age(u, self.now));
        resolution > 0
            && cell(u, resolution) == cell(v, resolution)
            && self.limits.iter().all(|limit| counts(limit, u, self.now) == counts(limit, v, self.now))
    }

    /// Returns the smallest resolution among the limits whose window is longer than `age`. An exact limit has 0.
    fn resolution(&self, age: u64) -> u64 {
        let longer = self.limits.iter().filter(|limit| limit.window().as_micros() > age);
        longer.map(|limit| limit.resolution().map_or(0, micros)).min().unwrap_or(0)
    }
}

/// M1: returns whether the entry is kept at a time that is not before its own.
fn is_kept(entry: &OracleEntry, at: Timestamp) -> bool {
    entry.kept && age(entry, at) < KEPT_FOR
}

fn counts(limit: &Limit, entry: &OracleEntry, at: Timestamp) -> bool {
    age(entry, at) < limit.window().as_micros()
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use std::cell::Cell;

    use limiter_core::Policy;
    use limiter_core::store::{LogKey, Op};
    use limiter_core::{EntryId, Name, NowStore};
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::super::{OracleStore, cap};
    use super::*;
    use crate::conformance::policies;

    /// Returns the time and the cost of what is left if every entry that no limit tells apart from the one before it merges.
    fn folded<'a>(
        log: impl Iterator<Item = &'a OracleEntry>,
        limits: &[Limit],
        now: Timestamp,
    ) -> Vec<(Timestamp, u64)> {
        let mut groups: Vec<(&OracleEntry, u64)> = Vec::new();
        let append = Append { limits, before: now, now, new: EntryId::from_u128(0) };
        for entry in log {
            match groups.last_mut().filter(|(last, _)| append.cannot_tell_apart(last, entry)) {
                Some((last, cost)) => (*last, *cost) = (entry, *cost + entry.cost),
                None => groups.push((entry, entry.cost)),
            }
        }
        groups.into_iter().map(|(last, cost)| (last.at, cost)).collect()
    }

    /// Under one policy, merging what is due equals a fold over the whole log, and the log stays small.
    #[test]
    fn under_one_policy_the_whole_log_is_folded() {
        let times = [0, 0, 0, 1, 1, 2, 3, 7, 9, 30, 599_999_990].map(Just);
        let step = (proptest::strategy::Union::new(times), 1..=3_u64, 0..8_u8);
        let (mut runner, merges) = (TestRunner::deterministic(), Cell::new(0));
        let property = |(policy, steps): (Policy, Vec<(u64, u64, u8)>)| {
            let (oracle, log, mut now) =
                (OracleStore::new(), LogKey::new(Name::new("fold"), b""), 1_700_000_000_000_000);
            let limits = policy.limits();
            for (after, cost, kind) in steps {
                now += after;
                let at = Timestamp::from_micros_saturating(now);
                let mut before = oracle.entries(log);
                let op = Op::record(b"", &policy).with_name(log.name).with_cost(cost).at(at);
                let op = if kind == 0 { op.with_kept() } else { op };
                oracle.apply_now(&op);
                let after = oracle.entries(log);
                before.push(OracleEntry { cost, at, kept: kind == 0, ..after[after.len() - 1] });
                before.retain(|entry| age(entry, at) < policy.longest_window().as_micros());
                cap(&mut before, policy.largest_max());
                let is_free = |entry: &&OracleEntry| !is_kept(entry, at);
                let left: Vec<_> = after.iter().filter(is_free).map(|entry| (entry.at, entry.cost)).collect();
                prop_assert_eq!(&left, &folded(before.iter().filter(is_free), limits, at));
                merges.set(merges.get() + before.len() - after.len());
                let cells = |limit: &Limit| {
                    limit
                        .resolution()
                        .map_or(usize::MAX, |each| (limit.window().as_micros() / micros(each)) as usize + 2)
                };
                prop_assert!(left.len() <= limits.iter().map(cells).fold(0, usize::saturating_add));
            }
            Ok(())
        };
        let policies = policies().prop_filter("all limits are exact", Policy::has_resolution);
        runner.run(&(policies, proptest::collection::vec(step, 1..=60)), property).unwrap();
        assert!(merges.get() > 1_000, "{merges:?}");
    }
}
