//! Merging: the items M1 and M2 of the contract.

use std::ops::Range;

use super::{Log, MERGED, StoredEntry};
use crate::log::search::gallop;
use crate::policy::Policy;
use crate::policy::bounds::MAX_COST;
use crate::policy::limit::Limit;
use crate::policy::time::{Timestamp, Window};
use crate::store::op::{Merging, Op};

impl Log {
    /// Merges entries after an append at `now`. Before it, the newest entry was at `before`.
    ///
    /// Only the new entry, or entries that have just left the last exact window, can merge, so the time is amortised.
    pub(super) fn merge(&mut self, op: &Op<'_>, before: Timestamp, now: Timestamp) {
        let Some(Merging { resolution, exact }) = op.merging() else {
            return;
        };
        let due = match exact {
            None => self.len() - 1..self.len(),
            Some(exact) => self.crossed(exact, before, now),
        };
        // The oldest entry has none before it.
        let due = due.start.max(1)..due.end;
        let mut past = due.start;
        for i in due.clone() {
            let entry = self.entries[i];
            let older = self.entries[past - 1].at;
            let is_one_cell = entry.at.as_micros() % resolution >= entry.at.micros_since(older);
            if is_one_cell && counts_both_or_neither(op, [older, entry.at], now) {
                self.entries[past - 1] = StoredEntry {
                    flagged: entry.flagged | MERGED,
                    ..entry
                };
                let excess = self.cost_of(past - 1).saturating_sub(MAX_COST);
                if excess > 0 {
                    self.entries
                        .range_mut(past - 1..)
                        .for_each(|entry| entry.total = entry.total.wrapping_sub(excess));
                }
            } else {
                self.entries[past] = entry;
                past += 1;
            }
        }
        if past < due.end {
            self.entries.drain(past..due.end);
        }
        self.shrink();
    }

    /// The entries whose age reached `window` after `before`, and until `now`.
    fn crossed(&self, window: Window, before: Timestamp, now: Timestamp) -> Range<usize> {
        let from_end = |i| self.entries[self.len() - 1 - i].at;
        let newer = |from, edge| gallop(from, self.len(), |i| from_end(i) >= edge);
        let younger = newer(0, window.edge(now));
        self.len() - newer(younger, window.edge(before))..self.len() - younger
    }
}

/// Returns `true` if each limit of the operation's policies counts both entries or neither.
fn counts_both_or_neither(op: &Op<'_>, at: [Timestamp; 2], now: Timestamp) -> bool {
    let is_equal = |limit: &Limit| {
        let [older, newer] = at.map(|at| limit.window().counts(at, now));
        older == newer
    };
    let all_equal = |policy: &Policy| policy.limits().iter().all(is_equal);
    all_equal(op.policy) && op.limiter_policy.is_none_or(all_equal)
}
