//! A log of any length: times of unit entries, or entries with their running total.

use std::collections::VecDeque;

use limiter_core::{Timestamp, Window};

use crate::survey::Entries;

/// The times of a log of unit entries are offsets from a base: 32 bits of them while they all fit, else 64.
/// An entry of another cost, and a log from which one was removed, has each entry's number and running total.
#[derive(Debug)]
pub(crate) enum Form {
    Narrow(VecDeque<u32>),
    Wide(VecDeque<u64>),
    Full(VecDeque<Weighted>),
}

/// An entry of any cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighted {
    at: u64,
    /// The sum of the costs of all entries up to this one, since the log took this form. It may wrap: only differences
    /// count, and no log holds 2^64 units.
    total: u64,
    number: u64,
}

/// The entries of a log, with hints where each limit's window begins.
#[derive(Debug)]
pub(crate) struct Deep {
    form: Form,
    /// The time of offset 0 in the narrow form.
    base: u64,
    /// In the unit forms the number of the first entry; in the full form the total before the first entry.
    before: u64,
    /// The number of the next entry.
    next: u64,
    /// Where each limit's window began the last time. Any value is right; a near one is fast.
    hints: [u32; limiter_core::MAX_LIMITS],
}

/// Buffers above this many entries are shrunk when three quarters of them are empty.
const SHRINK_ABOVE: usize = 32;

impl Deep {
    pub(crate) fn new(number: u64, times: impl Iterator<Item = Timestamp>) -> Self {
        let mut deep = Self {
            form: Form::Narrow(VecDeque::with_capacity(8)),
            base: 0,
            before: number,
            next: number,
            hints: [0; limiter_core::MAX_LIMITS],
        };
        for at in times {
            deep.push(at, 1);
        }
        deep
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match &self.form {
            Form::Narrow(offsets) => offsets.len(),
            Form::Wide(times) => times.len(),
            Form::Full(entries) => entries.len(),
        }
    }

    #[inline]
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        self.len().checked_sub(1).map(|last| self.at(last))
    }

    /// Appends an entry and returns its number.
    #[inline]
    pub(crate) fn push(&mut self, at: Timestamp, cost: u64) -> u64 {
        let micros = at.as_micros();
        if cost != 1 {
            self.make_full();
        }
        if let Form::Narrow(offsets) = &self.form {
            if offsets.is_empty() {
                self.base = micros;
            } else if micros - self.base > u64::from(u32::MAX) {
                self.rebase(micros);
            }
        }
        let number = self.next;
        self.next += 1;
        let total = self.total().wrapping_add(cost);
        match &mut self.form {
            Form::Narrow(offsets) => offsets.push_back((micros - self.base) as u32),
            Form::Wide(times) => times.push_back(micros),
            Form::Full(entries) => entries.push_back(Weighted { at: micros, total, number }),
        }
        number
    }

    /// Moves the base of the offsets to the first entry, if that gains half their range; else makes them wide. So the
    /// work is constant per entry on average.
    #[cold]
    fn rebase(&mut self, micros: u64) {
        let Form::Narrow(offsets) = &mut self.form else { return };
        let shift = offsets.front().copied().unwrap_or(0);
        if shift > u32::MAX / 2 && micros - self.base - u64::from(shift) <= u64::from(u32::MAX) {
            self.base += u64::from(shift);
            offsets.iter_mut().for_each(|offset| *offset -= shift);
        } else {
            self.form = Form::Wide(offsets.iter().map(|&offset| self.base + u64::from(offset)).collect());
        }
    }

    /// Gives each entry its number and running total.
    fn make_full(&mut self) {
        if matches!(self.form, Form::Full(_)) {
            return;
        }
        let number = self.before;
        let entries = (0..self.len()).map(|i| Weighted {
            at: self.at(i).as_micros(),
            total: i as u64 + 1,
            number: number + i as u64,
        });
        self.form = Form::Full(entries.collect());
        self.before = 0;
    }

    /// The running total of the newest entry.
    #[inline]
    fn total(&self) -> u64 {
        match &self.form {
            Form::Full(entries) => entries.back().map_or(self.before, |entry| entry.total),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn drop_front(&mut self, dropped: usize) {
        if dropped == 0 {
            return;
        }
        match &mut self.form {
            Form::Narrow(offsets) => {
                drop_from(offsets, dropped);
                self.before += dropped as u64;
            }
            Form::Wide(times) => {
                drop_from(times, dropped);
                self.before += dropped as u64;
            }
            Form::Full(entries) => {
                self.before = entries.get(dropped - 1).map_or(self.before, |last| last.total);
                drop_from(entries, dropped);
            }
        }
        for hint in &mut self.hints {
            *hint = hint.saturating_sub(dropped as u32);
        }
    }

    /// Drops all entries older than the newest ones that together hold at least `most`.
    #[inline]
    pub(crate) fn drop_beyond(&mut self, most: u64) {
        let excess = self.cost_from(0).saturating_sub(most);
        if excess > 0 {
            // The entry with which the excess is exceeded stays: without it, the others would not reach `most`.
            let kept = self.reaching(0, excess + 1);
            self.drop_front(kept);
        }
    }

    /// The number of the first entry, or of the next one where there is none.
    pub(crate) fn first_number(&self) -> u64 {
        match &self.form {
            Form::Full(entries) => entries.front().map_or(self.next, |entry| entry.number),
            _ => self.before,
        }
    }

    /// The index of the entry with this number.
    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        match &self.form {
            Form::Full(entries) => entries.binary_search_by_key(&number, |entry| entry.number).ok(),
            _ => number.checked_sub(self.before).map(|i| i as usize).filter(|&i| i < self.len()),
        }
    }

    /// Sets the cost of the `i`-th entry where it stands, or removes it if the cost is 0.
    pub(crate) fn settle(&mut self, i: usize, cost: u64) {
        let before = self.cost_from(i) - self.cost_from(i + 1);
        if before == cost {
            return;
        }
        self.make_full();
        let Form::Full(entries) = &mut self.form else { return };
        for entry in entries.range_mut(i..) {
            entry.total = entry.total.wrapping_sub(before).wrapping_add(cost);
        }
        if cost == 0 {
            entries.remove(i);
        }
    }
}

#[inline]
fn drop_from<T>(buffer: &mut VecDeque<T>, dropped: usize) {
    if dropped == 1 {
        buffer.pop_front();
    } else {
        buffer.drain(..dropped.min(buffer.len()));
    }
    if buffer.capacity() > SHRINK_ABOVE && buffer.len() < buffer.capacity() / 4 {
        buffer.shrink_to(buffer.capacity() / 2);
    }
}

impl Entries for Deep {
    #[inline]
    fn at(&self, i: usize) -> Timestamp {
        let micros = match &self.form {
            Form::Narrow(offsets) => self.base + offsets.get(i).map_or(0, |&offset| u64::from(offset)),
            Form::Wide(times) => times.get(i).copied().unwrap_or(0),
            Form::Full(entries) => entries.get(i).map_or(0, |entry| entry.at),
        };
        Timestamp::from_micros_saturating(micros)
    }

    #[inline]
    fn start(&mut self, limit: usize, window: Window, now: Timestamp) -> usize {
        let len = self.len();
        let hint = (self.hints[limit] as usize).min(len);
        let counts = |i: usize| window.counts(self.at(i), now);
        let start = if hint < len && !counts(hint) {
            gallop(hint, len, |i| !counts(i))
        } else if hint > 0 && counts(hint - 1) {
            hint - gallop(0, hint, |i| counts(hint - 1 - i))
        } else {
            hint
        };
        self.hints[limit] = u32::try_from(start).unwrap_or(0);
        start
    }

    #[inline]
    fn cost_from(&self, start: usize) -> u64 {
        match &self.form {
            Form::Full(entries) => {
                let before = match start {
                    0 => self.before,
                    _ => entries.get(start - 1).map_or(self.before, |entry| entry.total),
                };
                self.total().wrapping_sub(before)
            }
            _ => (self.len() - start) as u64,
        }
    }

    #[inline]
    fn reaching(&self, start: usize, cost: u64) -> usize {
        let last = self.len().saturating_sub(1);
        match &self.form {
            Form::Full(_) => {
                let all = self.cost_from(start);
                gallop(start, last, |i| all - self.cost_from(i + 1) < cost)
            }
            _ => start.saturating_add((cost - 1) as usize).min(last),
        }
    }
}

/// The first index from `from` on, before `to`, for which `before` is false; `to` if there is none. `before` holds for a
/// prefix. Looks 1, 2, 4, … ahead and then halves: logarithmic in the distance, not in the length.
#[inline]
fn gallop(from: usize, to: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (from, 1);
    while low < to && before(low) {
        // `low` is before; the answer is above it.
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
    fn gallop_finds_every_boundary() {
        for to in 0..40 {
            for from in 0..=to {
                for boundary in from..=to {
                    assert_eq!(gallop(from, to, |i| i < boundary), boundary, "{from}..{to}");
                }
            }
        }
    }

    #[test]
    fn offsets_that_outgrow_their_range_are_rebased_or_widened() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let half = u64::from(u32::MAX / 2);
        let mut log = Deep::new(0, [at(5), at(half + 10)].into_iter());
        log.drop_front(1);
        log.push(at(2 * half + 9), 1);
        assert!(matches!(log.form, Form::Narrow(_)));
        assert_eq!((log.at(0), log.at(1)), (at(half + 10), at(2 * half + 9)));
        log.push(at(3 * half + 20), 1);
        assert!(matches!(log.form, Form::Wide(_)));
        assert_eq!((log.at(0), log.at(1), log.at(2)), (at(half + 10), at(2 * half + 9), at(3 * half + 20)));
        assert_eq!((log.find(0), log.find(1), log.find(3), log.find(4)), (None, Some(0), Some(2), None));
    }

    #[test]
    fn buffers_shrink_when_they_empty() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let mut log = Deep::new(0, (0..100_000).map(at));
        for _ in 0..99_990 {
            log.drop_front(1);
        }
        let Form::Narrow(offsets) = &log.form else { panic!("{log:?}") };
        assert!(offsets.capacity() <= 2 * SHRINK_ABOVE, "{}", offsets.capacity());
    }
}
