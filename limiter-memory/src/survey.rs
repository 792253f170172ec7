//! What every form of a log computes alike: which entries count, whether an operation fits, and the facts.

use std::collections::VecDeque;

use limiter_core::{Facts, Limit, Op, Outcome, PerLimit, Timestamp, Usage};

/// Entries in the order in which they were appended.
pub(crate) trait Entries {
    fn len(&self) -> usize;
    /// The time of the `i`-th entry.
    fn at(&self, i: usize) -> Timestamp;
    /// The number of the first entry, or of the next one where there is none.
    fn first_number(&self) -> u64;
    /// The cost of the entries from `start` on.
    fn cost_from(&self, start: usize) -> u64;
    /// The first entry from `start` on with which the entries from `start` on hold at least `cost`.
    fn reaching(&self, start: usize, cost: u64) -> usize;
    fn drop_front(&mut self, dropped: usize);

    #[inline]
    fn newest(&self) -> Option<Timestamp> {
        self.len().checked_sub(1).map(|last| self.at(last))
    }

    /// How many entries to drop so that only the newest ones that together hold at least `most` are left.
    fn beyond(&self, most: u64) -> usize {
        match self.cost_from(0).saturating_sub(most) {
            0 => 0,
            // The entry with which the excess is exceeded stays: without it, the others would not reach `most`.
            excess => self.reaching(0, excess + 1),
        }
    }
}

/// One limit's window in a log.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// The index of the first entry that counts.
    pub(crate) start: usize,
    pub(crate) used: u64,
}

/// What an operation finds.
pub(crate) struct Survey<const N: usize> {
    pub(crate) now: Timestamp,
    pub(crate) newest: Option<Timestamp>,
    /// Each limit's window; the array has room for each limit of the policy, and what is beyond them stays zero.
    pub(crate) spans: [Span; N],
    pub(crate) admitted: bool,
    limits: [Limit; N],
    len: usize,
}

/// Finds each limit's window. `hint` guesses where a limit's window starts: any guess is right, a near one is fast.
#[inline]
pub(crate) fn survey<const N: usize>(
    entries: &impl Entries,
    op: &Op<'_>,
    now: Timestamp,
    hint: impl Fn(usize) -> usize,
) -> Survey<N> {
    let newest = entries.newest();
    let now = newest.map_or(now, |newest| newest.max(now));
    let mut spans = [Span { start: 0, used: 0 }; N];
    let mut admitted = true;
    let (limits, len) = op.policy.limits().to_array::<N>();
    for i in 0..len {
        let counts = |entry: usize| limits[i].window().counts(entries.at(entry), now);
        let start = boundary(hint(i), entries.len(), |entry| !counts(entry));
        spans[i] = Span { start, used: entries.cost_from(start) };
        admitted &= spans[i].used + op.cost <= limits[i].max();
    }
    Survey { now, newest, spans, admitted, limits, len }
}

impl<const N: usize> Survey<N> {
    /// How many of the first entries count in no window.
    #[inline]
    pub(crate) fn expired(&self) -> usize {
        self.spans[..self.len].iter().fold(usize::MAX, |first, span| first.min(span.start))
    }

    /// The survey as it is when the `expired` first entries have been dropped and one of this cost has been appended.
    #[inline]
    pub(crate) fn appended(mut self, cost: u64, expired: usize) -> Self {
        for span in &mut self.spans[..self.len] {
            span.start -= expired;
            span.used += cost;
        }
        self.newest = Some(self.now);
        self
    }

    /// The facts about the log as the survey describes it, for an operation of this cost.
    #[inline]
    pub(crate) fn facts(&self, entries: &impl Entries, cost: u64, admitted: bool, outcome: Outcome) -> Facts {
        let mut usage = [Usage::default(); N];
        for (i, usage) in usage.iter_mut().enumerate().take(self.len) {
            let (Span { start, used }, max) = (self.spans[i], self.limits[i].max());
            usage.used = used;
            if used > 0 {
                let excess = used.saturating_sub(max);
                // No entry costs less than 1, so the first one frees a unit.
                let first = if excess == 0 { start } else { entries.reaching(start, excess + 1) };
                usage.oldest = entries.at(first);
                usage.blocker = usage.oldest;
                if used + cost > max + excess + 1 {
                    // At most `used`: the cost is no higher than the maximum.
                    let room = (used + cost - max).min(used);
                    usage.blocker = entries.at(entries.reaching(start, room));
                }
            }
        }
        let usage = PerLimit::from_array(usage, self.len);
        Facts { now: self.now, admitted, outcome, newest: self.newest, usage }
    }
}

/// The first index up to `len` for which `before` is false, where `before` holds for a prefix: found from `hint` on, in
/// either direction.
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
        1 => _ = buffer.pop_front(),
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
