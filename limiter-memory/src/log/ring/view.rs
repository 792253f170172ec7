//! A ring read and written in its encoding.

use limiter_core::store::Op;
use limiter_core::{Timestamp, Window, internal};

use super::header::{Header, Oldest};
use crate::log::encoding::{Encoding, can_encode};
use crate::log::entries::{Entries, clamp};
use crate::log::retention::Retention;
use limiter_core::internal::gallop;

/// Rings of up to this capacity are not shrunk.
const SHRINK_ABOVE: usize = 32;

/// Whether to shrink is checked once in this many appends, or once per capacity if that is more: a log that empties and fills
/// in turns keeps its block.
const APPENDS_PER_CHECK: usize = 256;

/// A ring of this encoding, with `H` hints.
pub(crate) struct View<'a, E: Encoding, const H: usize> {
    /// A power of two. One entry stays empty: the one behind the newest, which stores the total before it.
    entries: &'a mut [E::Entry],
    hints: Option<&'a mut [u32; H]>,
    header: &'a mut Header,
    oldest: Option<&'a mut Oldest>,
}

impl<'a, E: Encoding, const H: usize> View<'a, E, H> {
    #[inline(always)]
    pub(super) fn new(words: &'a mut [u32], header: &'a mut Header, oldest: Option<&'a mut Oldest>) -> Self {
        let (entries, hints) = match words.split_last_chunk_mut() {
            Some((entries, hints)) => (E::entries(entries), Some(hints)),
            None => (&mut [][..], None),
        };
        Self { entries, hints, header, oldest }
    }

    const KEEPS_OLDEST: bool = H == 0 && !E::COSTS && E::RANGE == u32::MAX as u64;

    /// Never true. Checking it once saves the compiler all other bounds checks.
    #[inline(always)]
    pub(crate) fn has_no_capacity(&self) -> bool {
        self.entries.is_empty() || self.hints.is_none()
    }

    /// Returns the most entries that the ring can hold, which is one less than its capacity and therefore a bit mask.
    #[inline(always)]
    fn max_len(&self) -> usize {
        self.entries.len().wrapping_sub(1)
    }

    /// Returns where entry number `number` is.
    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        number as usize & self.max_len()
    }

    /// Returns how much older than the newest entry the entry with this number is.
    #[inline(always)]
    fn age(&self, number: u32) -> u64 {
        self.entries.get(self.index(number)).map_or(0, |entry| E::age(entry, self.header.newest_micros()))
    }

    #[inline(always)]
    fn at_age(&self, age: u64) -> Timestamp {
        internal::timestamp_from_low_bits(self.header.newest.wrapping_sub(age))
    }

    #[inline(always)]
    fn total_before(&self, i: usize) -> u64 {
        self.entries.get(self.index(self.header.number(i))).map_or(0, E::total_before)
    }

    /// Writes entry `i` behind the others. `total` is the total cost up to and including it.
    #[inline(always)]
    pub(super) fn write(&mut self, i: usize, at: Timestamp, total: u64) {
        let (index, next) = (self.index(self.header.number(i)), self.index(self.header.number(i + 1)));
        if let Some(entry) = self.entries.get_mut(index) {
            E::set_at(entry, at.as_micros());
        }
        if E::COSTS
            && let Some(entry) = self.entries.get_mut(next)
        {
            E::set_total_before(entry, total);
        }
    }

    #[inline(always)]
    fn hint(&self, limit: usize) -> u32 {
        self.hints.as_ref().and_then(|hints| hints.get(limit)).copied().unwrap_or_default()
    }

    #[cold]
    fn should_shrink(max_len: usize, len: usize) -> bool {
        len < max_len / 4 && max_len > SHRINK_ABOVE
    }
}

/// Searches for the first entry younger than `expired_age`, from entry `from` on. It takes what it needs in parts: a pointer to
/// the view would keep the header out of registers.
#[inline(never)]
fn search<E: Encoding>(
    entries: &[E::Entry],
    newest: u64,
    first: u32,
    len: u32,
    expired_age: u64,
    from: usize,
) -> usize {
    let index = |i: usize| (first as usize).wrapping_add(i) & entries.len().wrapping_sub(1);
    gallop(from, len as usize, |i| entries.get(index(i)).is_some_and(|entry| E::age(entry, newest) >= expired_age))
}

impl<E: Encoding, const H: usize> Entries for View<'_, E, H> {
    const COSTS: bool = E::COSTS;

    #[inline(always)]
    fn len(&self) -> usize {
        self.header.len()
    }

    #[inline(always)]
    fn at(&self, i: usize) -> Timestamp {
        self.at_age(self.age(self.header.number(i)))
    }

    #[inline(always)]
    fn newest(&self) -> Option<Timestamp> {
        self.header.newest()
    }

    #[inline(always)]
    fn clamp(&self, now: Timestamp) -> Timestamp {
        // A ring is empty only until its first entry comes, and its newest time is the epoch until then.
        clamp(internal::timestamp_from_low_bits(self.header.newest), now)
    }

    #[inline(always)]
    fn number(&self, i: usize) -> u64 {
        u64::from(self.header.number(i))
    }

    #[inline(always)]
    fn window_start(&self, limit: usize, window: Window, now: Timestamp) -> (usize, Timestamp) {
        let (len, first, newest) = (self.len(), self.header.number, self.header.newest_micros());
        let since = now.as_micros().wrapping_sub(newest);
        if since >= window.as_micros() {
            return (len, now);
        }
        let expired_age = window.as_micros() - since;
        let search = |from| search::<E>(self.entries, newest, first, len as u32, expired_age, from);
        if H > 0 {
            // Most of several windows begin where they began the last time, or later. The entry before the first is a dropped
            // one, or unwritten; if it seems to count, the search only costs time.
            let hint = self.hint(limit);
            let start = hint.wrapping_sub(first) as usize;
            let (before, age) = (self.age(hint.wrapping_sub(1)), self.age(hint));
            if start < len && before >= expired_age && age < expired_age {
                return (start, self.at_age(age));
            }
            let start = search(if start < len && age >= expired_age { start } else { 0 });
            return (start, self.at(start));
        }
        if Self::KEEPS_OLDEST
            && let Some(oldest) = &self.oldest
            && oldest.number == first
        {
            let age = u64::from((newest as u32).wrapping_sub(oldest.low));
            if age < expired_age {
                return (0, self.at_age(age));
            }
        }
        let expired = |i| usize::from(self.age(self.header.number(i)) >= expired_age);
        // How many entries expired since the last operation is random. Adding up four comparisons avoids a branch on it.
        let near = if len >= 4 {
            expired(0) + expired(1) + expired(2) + expired(3)
        } else {
            let expired = |i| usize::from(i < len) & expired(i);
            expired(0) + expired(1) + expired(2)
        };
        let start = if near == 4 { search(near) } else { near };
        (start, self.at(start))
    }

    #[inline(always)]
    fn remember_starts(&mut self, mut starts: impl Iterator<Item = (usize, Timestamp)>) {
        let first = self.header.number;
        if H == 0 {
            if Self::KEEPS_OLDEST
                && let Some(oldest) = &mut self.oldest
                && let Some((start, at)) = starts.next()
            {
                let counts = start < self.header.len();
                **oldest = if counts {
                    Oldest { number: self.header.number(start), low: at.as_micros() as u32 }
                } else {
                    Oldest::none(first)
                };
            }
            return;
        }
        for (hint, (start, _)) in self.hints.iter_mut().flat_map(|hints| hints.iter_mut()).zip(starts) {
            *hint = first.wrapping_add(start as u32);
        }
    }

    #[inline(always)]
    fn cost_from(&self, start: usize) -> u64 {
        if E::COSTS {
            self.total_before(self.len()).wrapping_sub(self.total_before(start)) & E::RANGE
        } else {
            (self.len() - start) as u64
        }
    }

    fn drop_front(&mut self, count: usize) {
        self.header.number = self.header.number(count);
        self.header.len -= count as u32;
    }

    #[inline(always)]
    fn can_push(&self, op: &Op<'_>, expired: usize) -> bool {
        let (len, max_len) = (self.len() - expired, self.max_len());
        let is_check = self.number(self.len()) as usize & (max_len | (APPENDS_PER_CHECK - 1)) == 0;
        if is_check && Self::should_shrink(max_len, len) {
            return false;
        }
        (H > 0 || op.policy.limits().len() == 1) && can_encode::<E>(op, self.cost_from(expired)) && len < max_len
    }

    #[inline(always)]
    fn push(&mut self, expired: usize, op: &Op<'_>, at: Timestamp) -> u64 {
        let len = self.len();
        let total = if E::COSTS { self.total_before(len).wrapping_add(op.cost) } else { 0 };
        let number = self.number(len);
        self.write(len, at, total);
        self.header.newest = Header::pack::<E, H>(at, Retention::after_append(op));
        self.header.number = self.header.number(expired);
        self.header.len = (len - expired) as u32 + 1;
        number
    }
}
