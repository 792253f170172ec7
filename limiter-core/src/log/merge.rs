//! Merging: the items M1 to M6 of the contract.

use std::mem;
use std::ops::Range;

use smallvec::SmallVec;

use super::{Log, MERGED, StoredEntry};
use crate::bounds::MAX_COST;
use crate::limit::Limit;
use crate::merging::Merging;
use crate::op::Op;
use crate::search::gallop;
use crate::time::{Timestamp, Window};

/// The most entries that are removed one by one. More are removed in one pass over the log.
const REMOVED_SINGLY: usize = 8;

/// One append, after which entries merge.
struct Append<'a> {
    merging: &'a Merging,
    /// The newest entry before the append.
    before: Timestamp,
    now: Timestamp,
    new: Range<usize>,
    /// The entries whose age reached ten minutes: those with the mark have ceased to be kept. Later ones with the mark are kept.
    ceasing: Range<usize>,
    /// The merged entry of which a part has ceased to be kept.
    ceased: Option<usize>,
}

impl Append<'_> {
    fn expired(&self, window: Window, at: Timestamp) -> bool {
        window.counts(at, self.before) && !window.counts(at, self.now)
    }

    fn can_tell_apart(&self, older: Timestamp, newer: Timestamp) -> bool {
        let resolution = self.merging.resolution_at(self.now.micros_since(newer));
        !is_same_cell(resolution, older, newer)
            || self.merging.windows().iter().any(|(w, _)| w.counts(older, self.now) != w.counts(newer, self.now))
    }
}

/// Whether two times are in one cell of a resolution in microseconds. If it is 0, none are.
const fn is_same_cell(resolution: u64, older: Timestamp, newer: Timestamp) -> bool {
    resolution > 0 && newer.as_micros() % resolution >= newer.micros_since(older)
}

impl Log {
    /// Adds an entry that is not kept to the newest one, if they merge. Returns `None` if [`merge`](Self::merge) is to find out.
    ///
    /// Most appends end here. What an append drops is the same: the newest entry stays, because the cost is below `max`.
    pub(super) fn add_to_newest(&mut self, op: &Op<'_>, max: u64, now: Timestamp) -> Option<StoredEntry> {
        let cost = self.cost_of(self.len().checked_sub(1)?).saturating_add(op.cost);
        let newest = self.entries.back_mut().filter(|newest| !newest.is_marked_kept())?;
        // All limits count the new entry, so all of them must count the newest one.
        let is_told_apart = |limit: &Limit| {
            !limit.window().counts(newest.at, now) || !is_same_cell(limit.resolution_micros(), newest.at, now)
        };
        if op.cost >= max || cost > MAX_COST || op.limits().any(is_told_apart) {
            return None;
        }
        *newest = StoredEntry { at: now, total: newest.total.wrapping_add(op.cost), marked: self.next | MERGED };
        (self.next, self.plain_until) = (self.next.wrapping_add(1), now);
        Some(*newest)
    }

    /// Merges entries after an append at `now`. Before it, the newest entry was at `before`. `new` is the new entry, or empty if
    /// that has merged.
    ///
    /// Only the new entry and those that reached the end of a window or of ten minutes can merge, so the time is amortised. Where
    /// kept entries lie between two that merge, it is proportional to their number.
    pub(super) fn merge(&mut self, op: &Op<'_>, before: Timestamp, now: Timestamp, new: Range<usize>) {
        let may_be_kept = self.kept_until.is_some_and(|at| Merging::KEPT.counts(at, before));
        let ceasing = if may_be_kept { self.passed(Merging::KEPT, before, now) } else { self.len()..self.len() };
        // What left the longest window is gone.
        let longest = op.retention().window;
        let mut shorter = op.limits().map(Limit::window).filter(|window| *window < longest).peekable();
        if new.is_empty() && ceasing.is_empty() && shorter.peek().is_none() {
            return;
        }
        let candidates = shorter.map(|window| self.passed(window, before, now)).chain([ceasing.clone(), new.clone()]);
        let candidates: SmallVec<[_; 4]> = candidates.filter(|range| !range.is_empty()).collect();
        let candidate_from =
            |i: usize| candidates.iter().filter(|range| i < range.end).map(|range| i.max(range.start)).min();
        let (Some(merging), false) = (op.merging(), candidates.is_empty()) else { return };
        let mut append = Append { merging: &merging, before, now, new, ceasing, ceased: None };
        let mut removed = SmallVec::<[usize; REMOVED_SINGLY]>::new();
        let mut candidate = candidate_from(0);
        while let Some(i) = candidate {
            let plain = !self.is_kept(i, &append);
            if plain && let Some(older) = self.merges_with(i, &append) {
                let ceased = self.has_ceased(i, &append) || self.has_ceased(older, &append);
                append.ceased = ceased.then_some(i).or(append.ceased);
                self.absorb(older, i);
                removed.push(older);
            }
            let ceased = plain && self.has_ceased(i, &append);
            candidate = if ceased { self.next_plain(i + 1, &append) } else { candidate_from(i + 1) };
        }
        if removed.len() <= REMOVED_SINGLY {
            for older in removed.into_iter().rev() {
                self.entries.remove(older);
            }
        } else {
            let mut previous = self.dropped;
            self.entries.retain(|entry| mem::replace(&mut previous, entry.total) != entry.total);
        }
        self.shrink();
    }

    /// The entries that reached the end of `window` after `before`, and until `now`.
    fn passed(&self, window: Window, before: Timestamp, now: Timestamp) -> Range<usize> {
        let newer = |from, edge| gallop(from, self.len(), |i| self.entries[self.len() - 1 - i].at >= edge);
        let counting = newer(0, window.edge(now));
        self.len() - newer(counting, window.edge(before))..self.len() - counting
    }

    fn is_kept(&self, i: usize, append: &Append<'_>) -> bool {
        i >= append.ceasing.end && self.entries[i].is_marked_kept()
    }

    fn has_ceased(&self, i: usize, append: &Append<'_>) -> bool {
        append.ceased == Some(i) || (append.ceasing.contains(&i) && self.entries[i].is_marked_kept())
    }

    /// The entry that entry `i`, which is not kept, merges with.
    fn merges_with(&self, i: usize, append: &Append<'_>) -> Option<usize> {
        let older = (0..i).rev().find(|older| !self.is_kept(*older, append))?;
        let at = self.entries[i].at;
        let may_merge = append.new.contains(&i)
            || append.merging.windows().iter().any(|(window, _)| append.expired(*window, at))
            || self.has_ceased(i, append)
            || self.has_ceased(older, append);
        (may_merge && !append.can_tell_apart(self.entries[older].at, at)).then_some(older)
    }

    /// The first entry from index `i` on that is not kept.
    fn next_plain(&self, i: usize, append: &Append<'_>) -> Option<usize> {
        let all_are_kept = i >= append.ceasing.end && self.entries.get(i)?.at > self.plain_until;
        if all_are_kept { None } else { (i..self.len()).find(|i| !self.is_kept(*i, append)) }
    }

    /// Adds the cost of the entry `older` to entry `i`. Between them are kept entries only. The older one then costs nothing.
    fn absorb(&mut self, older: usize, i: usize) {
        let cost = self.cost_of(older);
        self.entries.range_mut(older..i).for_each(|entry| entry.total = entry.total.wrapping_sub(cost));
        let excess = self.cost_of(i).saturating_sub(MAX_COST);
        if excess > 0 {
            self.entries.range_mut(i..).for_each(|entry| entry.total = entry.total.wrapping_sub(excess));
        }
        self.entries[i].mark_merged();
        self.plain_until = self.plain_until.max(self.entries[i].at);
    }
}
