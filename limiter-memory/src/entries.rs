//! What every form of a log can do.

use limiter_core::store::Op;
use limiter_core::{Timestamp, Window};

/// Entries in the order in which they were appended. They are numbered one by one, in the compact forms modulo 2^32.
pub(crate) trait Entries {
    fn len(&self) -> usize;
    /// The time of the `i`-th entry; where there is none, it is any.
    fn at(&self, i: usize) -> Timestamp;
    /// The number of the `i`-th entry, or of the next one where there is none.
    fn number(&self, i: usize) -> u64;
    /// The first entry that counts in the `limit`-th limit's window at `now`: its index and its time, which is any if
    /// there is none. `N` is 1 if there is but one limit.
    fn first<const N: usize>(&self, limit: usize, window: Window, now: Timestamp) -> (usize, Timestamp);
    /// Keeps in mind where each limit's window begins, which is the place to look for it the next time.
    #[inline(always)]
    fn remember(&mut self, _starts: impl Iterator<Item = usize>) {}
    /// The cost of the entries from `start` on.
    fn cost_from(&self, start: usize) -> u64;
    /// The first entry from `start` on with which the entries from `start` on hold at least `cost`.
    fn reaching(&self, start: usize, cost: u64) -> usize;
    fn drop_front(&mut self, dropped: usize);
    /// Drops the first entries, appends the operation's, which the log [takes](Self::takes), and returns its number.
    fn push(&mut self, dropped: usize, op: &Op<'_>, at: Timestamp) -> u64;
    /// Whether the operation's entry can be appended to the entries from `from` on, and the log should stay as it is for
    /// as many limits as `N` in [`start`](Self::start) tells.
    fn takes<const N: usize>(&self, op: &Op<'_>, from: usize) -> bool;

    #[inline]
    fn newest(&self) -> Option<Timestamp> {
        self.len().checked_sub(1).map(|last| self.at(last))
    }

    /// This time, but no earlier than the newest entry.
    #[inline]
    fn not_before(&self, now: Timestamp) -> Timestamp {
        later(self.newest().unwrap_or(now), now)
    }

    /// The index of the entry with this number.
    fn find(&self, number: u64) -> Option<usize> {
        let i = u32::try_from(number).ok()?.wrapping_sub(self.number(0) as u32) as usize;
        (i < self.len()).then_some(i)
    }

    /// Drops all entries older than the newest ones that together hold at least `most`.
    fn drop_beyond(&mut self, most: u64) {
        let excess = self.cost_from(0).saturating_sub(most);
        if excess > 0 {
            // The entry with which the excess is exceeded stays: without it, the others would not reach `most`.
            self.drop_front(self.reaching(0, excess + 1));
        }
    }
}

/// The later one of the newest entry's time and the clock's. A branch: where an entry has to come from memory, what follows
/// from the clock need not wait for it.
#[inline(always)]
pub(crate) fn later(newest: Timestamp, now: Timestamp) -> Timestamp {
    if newest > now {
        rarely();
        return newest;
    }
    now
}

/// Tells the compiler which way is the rare one.
#[cold]
pub(crate) fn rarely() {}

/// The first index up to `len` for which `before` is false, where `before` holds for a prefix: looked for from `hint` on,
/// in either direction. Any hint is right; a near one is fast.
#[inline]
pub(crate) fn boundary(hint: usize, len: usize, before: impl Fn(usize) -> bool) -> usize {
    let hint = hint.min(len);
    if hint < len && before(hint) {
        gallop(hint, len, before)
    } else if hint > 0 && !before(hint - 1) {
        hint - gallop(0, hint, |back| !before(hint - 1 - back))
    } else {
        hint
    }
}

/// The first index from `from` on, before `to`, for which `before` is false; `to` if there is none. `before` holds for a
/// prefix. Looks 1, 2, 4, … ahead and then halves: logarithmic in the distance, not in the length.
#[inline]
pub(crate) fn gallop(from: usize, to: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (from, 1);
    while low < to && before(low) {
        let next = low.saturating_add(step).min(to);
        if next >= to || !before(next) {
            let (mut below, mut above) = (low, next);
            while above - below > 1 {
                let middle = below + (above - below) / 2;
                if before(middle) {
                    below = middle;
                } else {
                    above = middle;
                }
            }
            return above;
        }
        low = next;
        step *= 2;
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_boundary_is_found_from_every_hint() {
        for len in 0..40 {
            for wanted in 0..=len {
                for hint in 0..=len + 1 {
                    assert_eq!(boundary(hint, len, |i| i < wanted), wanted, "{hint} of {len}");
                }
            }
        }
    }
}
