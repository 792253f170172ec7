//! What every form of a log can do. Evaluation is written against this trait.

use limiter_core::store::Op;
use limiter_core::{Timestamp, Window};

use limiter_core::internal::gallop;

/// The entries of a log, in the order in which they were appended.
///
/// Entries are numbered one by one, modulo 2^32 in compact forms. A receipt names an entry by number and time.
pub(crate) trait Entries {
    /// Whether entries have costs. Otherwise each costs 1.
    const COSTS: bool;

    fn len(&self) -> usize;

    /// Returns the time of entry `i`. Unspecified if there is no such entry.
    fn at(&self, i: usize) -> Timestamp;

    /// Returns the number of entry `i`, or the next number if there is no such entry.
    fn number(&self, i: usize) -> u64;

    /// Returns the index and the time of the first entry that counts in the window of limit `limit` at `now`. The index is
    /// the length and the time unspecified if none counts.
    fn window_start(&self, limit: usize, window: Window, now: Timestamp) -> (usize, Timestamp);

    /// Remembers the window start of each limit, index and time, for the next search.
    #[inline(always)]
    fn remember_starts(&mut self, _starts: impl Iterator<Item = (usize, Timestamp)>) {}

    /// Returns the total cost of the entries from `start` on.
    fn cost_from(&self, start: usize) -> u64;

    /// Returns the first index at which the entries from `start` up to and including it cost at least `cost`.
    #[inline]
    fn reaching(&self, start: usize, cost: u64) -> usize {
        let last = self.len().saturating_sub(1);
        if Self::COSTS {
            let all = self.cost_from(start);
            gallop(start, last, |i| all - self.cost_from(i + 1) < cost)
        } else {
            start.saturating_add(cost as usize).saturating_sub(1).min(last)
        }
    }

    /// Removes the first `count` entries.
    fn drop_front(&mut self, count: usize);

    /// Whether this form can drop the first `expired` entries and append the operation's.
    fn can_push(&self, op: &Op<'_>, expired: usize) -> bool;

    /// Drops the first `expired` entries, appends the operation's entry, and returns its number. Requires
    /// [`can_push`](Self::can_push).
    fn push(&mut self, expired: usize, op: &Op<'_>, at: Timestamp) -> u64;

    #[inline]
    fn newest(&self) -> Option<Timestamp> {
        self.len().checked_sub(1).map(|last| self.at(last))
    }

    /// Returns `now`, or the time of the newest entry if that is later.
    #[inline]
    fn clamp(&self, now: Timestamp) -> Timestamp {
        clamp(self.newest().unwrap_or(now), now)
    }

    /// Returns the index of the entry with this number.
    fn find(&self, number: u64) -> Option<usize> {
        let i = u32::try_from(number).ok()?.wrapping_sub(self.number(0) as u32) as usize;
        (i < self.len()).then_some(i)
    }

    /// Drops entries older than the newest ones that together cost at least `max`.
    fn drop_beyond(&mut self, max: u64) {
        let excess = self.cost_from(0).saturating_sub(max);
        if excess > 0 {
            // The entry that reaches excess + 1 stays: without it, the others would cost less than `max`.
            self.drop_front(self.reaching(0, excess + 1));
        }
    }
}

/// Returns the later of the newest entry's time and the clock's. A branch, not a select: a select would make everything that
/// follows from the clock wait for the entry to come from memory.
#[inline(always)]
pub(crate) fn clamp(newest: Timestamp, now: Timestamp) -> Timestamp {
    if newest > now {
        unlikely();
        return newest;
    }
    now
}

/// Marks the branch it is called in as unlikely.
#[cold]
pub(crate) fn unlikely() {}
