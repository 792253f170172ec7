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
    /// Merges entries, from the oldest to the newest. `name` returns a new id of the store.
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
            let merged =
                OracleEntry { name: name(), id: None, kept: false, cost: (u.cost + v.cost).min(MAX_COST), ..u };
            // It counts as an entry that ceased to be kept if one of its parts did.
            if ceased.contains(&u.name) || ceased.contains(&v.name) {
                ceased.insert(merged.name);
            }
            log[newer] = merged;
            // The entry after the merged one is now at this index.
            log.remove(older);
        }
    }

    /// Condition 1: `u` is the new entry, or it crossed the end of a window, or one of the two ceased to be kept.
    fn may_merge(&self, v: &OracleEntry, u: &OracleEntry, ceased: &HashSet<EntryId>) -> bool {
        let has_crossed = |limit: &Limit| counts(limit, u, self.before) && !counts(limit, u, self.now);
        u.name == self.new || self.limits.iter().any(has_crossed) || [u, v].iter().any(|e| ceased.contains(&e.name))
    }

    /// Conditions 2 and 3: both are in one cell, and each limit counts both or neither.
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

/// Returns whether the entry is kept at a time that is not before its own.
fn is_kept(entry: &OracleEntry, at: Timestamp) -> bool {
    entry.kept && age(entry, at) < KEPT_FOR
}

fn counts(limit: &Limit, entry: &OracleEntry, at: Timestamp) -> bool {
    age(entry, at) < limit.window().as_micros()
}
