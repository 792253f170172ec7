//! Merging: the items M1 to M6 of the contract.

use std::ops::Range;

use super::{Log, MARKS, MERGED, NAMED, StoredEntry};
use crate::bounds::MAX_COST;
use crate::merging::Merging;
use crate::op::Op;
use crate::search::gallop;
use crate::time::{Timestamp, Window};

impl StoredEntry {
    /// The marks that the next entry takes over if its time is `now`.
    pub(super) const fn marks_at(&self, now: Timestamp) -> u64 {
        let cell = Merging::NAMED_FOR.as_micros();
        match now.as_micros() / cell - self.at.as_micros() / cell {
            0 => self.flags() & MARKS,
            1 => (self.flags() & NAMED) >> 1,
            _ => 0,
        }
    }
}

/// Whether two times are in one cell of a resolution in microseconds. If it is 0, none are.
pub(super) const fn is_same_cell(resolution: u64, older: Timestamp, newer: Timestamp) -> bool {
    resolution > 0 && newer.as_micros() % resolution >= newer.micros_since(older)
}

impl Log {
    /// Marks the newest entry, which the operation has just appended.
    pub(super) fn mark_newest(&mut self, op: &Op<'_>, now: Timestamp) {
        let carried = self
            .len()
            .checked_sub(2)
            .map_or(0, |i| self.entries[i].marks_at(now));
        let own = if op.has_resolution() && op.is_named() {
            NAMED
        } else {
            0
        };
        if let Some(newest) = self.entries.back_mut() {
            newest.flagged |= carried | own;
        }
    }

    /// Merges entries after an append at `now`. Before it, the newest entry was at `before`.
    ///
    /// Only the new entry and those that crossed a boundary can merge, so the time is amortised.
    pub(super) fn merge(&mut self, op: &Op<'_>, before: Timestamp, now: Timestamp) {
        let (Some(merging), Some(newest)) = (op.merging(), self.entries.back()) else {
            return;
        };
        let is_marked = newest.flags() & MARKS > 0;
        let merges = |older: Timestamp, newer: Timestamp| {
            is_same_cell(
                merging.resolution_at(now.micros_since(newer), is_marked),
                older,
                newer,
            ) && merging
                .windows()
                .iter()
                .all(|(w, _)| w.counts(older, now) == w.counts(newer, now))
        };
        // The oldest entry has none before it. Entries that crossed a longer boundary are older.
        let mut next = 1;
        for boundary in merging.boundaries().into_iter().rev() {
            let crossed = self.crossed(boundary, before, now);
            next = self.merge_each(crossed.start.max(next)..crossed.end.max(next), merges);
        }
        self.merge_each(next.max(self.len() - 1)..self.len(), merges);
        self.shrink();
    }

    /// The entries whose age reached `boundary` after `before`, and until `now`.
    pub(super) fn crossed(
        &self,
        boundary: Window,
        before: Timestamp,
        now: Timestamp,
    ) -> Range<usize> {
        let newer = |from, edge| {
            gallop(from, self.len(), |i| {
                self.entries[self.len() - 1 - i].at >= edge
            })
        };
        let younger = newer(0, boundary.edge(now));
        self.len() - newer(younger, boundary.edge(before))..self.len() - younger
    }

    /// Merges each entry of a range with the one before it if `merges` holds for their times. Returns the index past the range.
    fn merge_each(
        &mut self,
        range: Range<usize>,
        merges: impl Fn(Timestamp, Timestamp) -> bool,
    ) -> usize {
        let mut past = range.start;
        for i in range.clone() {
            let entry = self.entries[i];
            if merges(self.entries[past - 1].at, entry.at) {
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
        self.entries.drain(past..range.end);
        past
    }
}
