//! What every form of a log can do.

use std::collections::VecDeque;

use limiter_core::{MAX_LIMITS, Op, Timestamp, Window};

/// Entries in the order in which they were appended.
pub(crate) trait Entries {
    fn len(&self) -> usize;
    /// The time of the `i`-th entry.
    fn at(&self, i: usize) -> Timestamp;
    /// The number of the first entry, or of the next one where there is none.
    fn first_number(&self) -> u64;
    /// The index of the entry with this number.
    fn find(&self, number: u64) -> Option<usize>;
    /// The index of the first entry that counts in the `limit`-th limit's window at `now`.
    fn start(&mut self, limit: usize, window: Window, now: Timestamp) -> usize;
    /// The cost of the entries from `start` on.
    fn cost_from(&self, start: usize) -> u64;
    /// The first entry from `start` on with which the entries from `start` on hold at least `cost`.
    fn reaching(&self, start: usize, cost: u64) -> usize;
    fn drop_front(&mut self, dropped: usize);
    /// Whether the operation's entry can be appended at this time, when the `expired` first ones have been dropped.
    fn takes(&self, op: &Op<'_>, at: Timestamp, expired: usize) -> bool;
    /// Appends the operation's entry, which the log [takes](Self::takes), and returns its number.
    fn push(&mut self, op: &Op<'_>, at: Timestamp) -> u64;

    #[inline]
    fn newest(&self) -> Option<Timestamp> {
        self.len().checked_sub(1).map(|last| self.at(last))
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

/// Where each limit's window began the last time: the place to look for it the next time.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// How many entries have been dropped from the front, modulo 2^32.
    dropped: u32,
    /// Indices, plus what had been dropped when they were found.
    starts: [u32; MAX_LIMITS],
}

impl Hints {
    /// The index of the first of `len` entries that counts in the `limit`-th limit's window.
    #[inline]
    pub(crate) fn start(&mut self, limit: usize, len: usize, counts: impl Fn(usize) -> bool) -> usize {
        let hint = &mut self.starts[limit % MAX_LIMITS];
        let start = boundary(hint.wrapping_sub(self.dropped) as usize, len, |i| !counts(i));
        *hint = self.dropped.wrapping_add(start as u32);
        start
    }

    #[inline]
    pub(crate) fn drop_front(&mut self, dropped: usize) {
        self.dropped = self.dropped.wrapping_add(dropped as u32);
    }
}

/// The first index up to `len` for which `before` is false, where `before` holds for a prefix: looked for from `hint` on,
/// in either direction. Any hint is right; a near one is fast.
#[inline]
fn boundary(hint: usize, len: usize, before: impl Fn(usize) -> bool) -> usize {
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

/// Buffers with room for more entries than this are shrunk when three quarters of it are empty.
const SHRINK_ABOVE: usize = 32;

#[inline]
pub(crate) fn drop_from<T>(buffer: &mut VecDeque<T>, dropped: usize) {
    match dropped {
        0 => return,
        // Cheaper one by one while they are few.
        1..=8 => (0..dropped).for_each(|_| _ = buffer.pop_front()),
        _ => _ = buffer.drain(..dropped.min(buffer.len())),
    }
    if buffer.capacity() > SHRINK_ABOVE && buffer.len() < buffer.capacity() / 4 {
        buffer.shrink_to(buffer.capacity() / 2);
    }
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
