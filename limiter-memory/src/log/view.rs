//! The entries of a compact log, read and written in their encoding of 4 to 16 bytes.

use std::marker::PhantomData;

use limiter_core::internal::gallop;
use limiter_core::store::Op;
use limiter_core::{Timestamp, Window};

use super::lifetime::{Lifetime, retention_zeros};

/// The entries of a log, in the order in which they were appended. A receipt identifies an entry by number and time.
pub(crate) struct View<'a, E: Encoding> {
    /// A power of two. Entry number `n` is at index `n` modulo their number. If entries have costs, one stays empty: the one
    /// behind the newest, which stores the total before it.
    entries: &'a mut [E::Entry],
    hints: &'a mut [u32],
    header: &'a mut E::Header,
    /// The newest entry's time in microseconds, or 0 if there has been none.
    newest: u64,
    oldest: Option<&'a mut Oldest>,
}

impl<'a, E: Encoding> View<'a, E> {
    #[inline(always)]
    pub(super) fn new(
        words: &'a mut [u32],
        header: &'a mut E::Header,
        newest: Timestamp,
        oldest: Option<&'a mut Oldest>,
    ) -> Self {
        let (entries, hints) = words.split_at_mut(words.len().saturating_sub(E::HINTS));
        Self {
            entries: E::entries(entries),
            hints,
            header,
            newest: newest.as_micros(),
            oldest,
        }
    }

    const KEEPS_OLDEST: bool = E::HINTS == 0 && !E::COSTS && E::RANGE == u32::MAX as u64;

    /// Never true. Checking it once saves the compiler all other bounds checks.
    #[inline(always)]
    pub(crate) fn has_no_capacity(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns where entry number `number` is.
    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        number as usize & self.entries.len().wrapping_sub(1)
    }

    /// Returns the age of the entry with this number, relative to the newest entry.
    #[inline(always)]
    fn age(&self, number: u32) -> u64 {
        self.entries
            .get(self.index(number))
            .map_or(0, |entry| E::age(entry, self.newest))
    }

    #[inline(always)]
    fn at_age(&self, age: u64) -> Timestamp {
        Timestamp::from_low_bits(self.newest.wrapping_sub(age))
    }

    #[inline(always)]
    fn total_before(&self, i: usize) -> u64 {
        self.entries
            .get(self.index(self.number(i)))
            .map_or(0, E::total_before)
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.header.len()
    }

    /// Returns the time of entry `i`. Unspecified if there is no such entry.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> Timestamp {
        self.at_age(self.age(self.number(i)))
    }

    #[inline(always)]
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        (self.len() > 0).then(|| self.at_age(0))
    }

    /// Returns `now`, or the time of the newest entry if that is later. A branch, not a select: a select would make everything
    /// that follows from the clock wait for the entry to come from memory.
    #[inline(always)]
    pub(crate) fn clamp(&self, now: Timestamp) -> Timestamp {
        if self.newest > now.as_micros() {
            unlikely();
            return self.at_age(0);
        }
        now
    }

    /// Returns the number of entry `i`, or the next number if there is no such entry.
    #[inline(always)]
    pub(crate) fn number(&self, i: usize) -> u32 {
        self.header.first().wrapping_add(i as u32)
    }

    /// Returns the index of the entry with this number.
    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        let i = u32::try_from(number).ok()?.wrapping_sub(self.number(0)) as usize;
        (i < self.len()).then_some(i)
    }

    /// Returns the index and the time of the first entry that counts in the window of limit `limit` at `now`. If none counts,
    /// the index is the length, and the time is unspecified.
    #[inline(always)]
    pub(crate) fn window_start(
        &self,
        limit: usize,
        window: Window,
        now: Timestamp,
    ) -> (usize, Timestamp) {
        let len = self.len();
        let first = self.number(0);
        let newest = self.newest;
        let since = now.as_micros().wrapping_sub(newest);
        if since >= window.as_micros() {
            return (len, now);
        }
        let expired_age = window.as_micros() - since;
        let search = |from| search::<E>(self.entries, newest, first, len as u32, expired_age, from);
        if E::HINTS > 0 {
            // Most of several windows begin where they began the last time, or later. The entry before the first is a dropped
            // one, or unwritten, or the newest; if it seems to count, the search only costs time.
            let hint = self.hints.get(limit).copied().unwrap_or_default();
            let start = hint.wrapping_sub(first) as usize;
            let before = self.age(hint.wrapping_sub(1));
            let age = self.age(hint);
            if start < len && before >= expired_age && age < expired_age {
                return (start, self.at_age(age));
            }
            let start = search(if start < len && age >= expired_age {
                start
            } else {
                0
            });
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
        let expired = |i| usize::from(self.age(self.number(i)) >= expired_age);
        // How many entries expired since the last operation is random. Adding up comparisons avoids a branch on it. The newest
        // entry counts.
        let near = if E::Header::GROWS && len >= 4 {
            expired(0) + expired(1) + expired(2) + expired(3)
        } else {
            let expired = |i| usize::from(i < len) & expired(i);
            expired(0) + expired(1) + expired(2)
        };
        let start = if near == 4 { search(near) } else { near };
        (start, self.at(start))
    }

    /// Remembers the window start of each limit, index and time, for the next search.
    #[inline(always)]
    pub(crate) fn remember_starts(&mut self, mut starts: impl Iterator<Item = (usize, Timestamp)>) {
        let first = self.number(0);
        if Self::KEEPS_OLDEST
            && let Some((start, at)) = starts.next()
            && let Some(oldest) = &mut self.oldest
        {
            **oldest = if start < self.header.len() {
                Oldest {
                    number: first.wrapping_add(start as u32),
                    low: at.as_micros() as u32,
                }
            } else {
                Oldest::none(first)
            };
        }
        for (hint, (start, _)) in self.hints.iter_mut().zip(starts) {
            *hint = first.wrapping_add(start as u32);
        }
    }

    /// Returns the total cost of the entries from `start` on.
    #[inline(always)]
    pub(crate) fn cost_from(&self, start: usize) -> u64 {
        if E::COSTS {
            self.total_before(self.len())
                .wrapping_sub(self.total_before(start))
                & E::RANGE
        } else {
            (self.len() - start) as u64
        }
    }

    /// Returns the first index at which the entries from `start` up to and including it cost at least `cost`.
    #[inline]
    pub(crate) fn reaching(&self, start: usize, cost: u64) -> usize {
        let last = self.len().saturating_sub(1);
        if E::COSTS {
            let all = self.cost_from(start);
            gallop(start, last, |i| all - self.cost_from(i + 1) < cost)
        } else {
            start
                .saturating_add(cost as usize)
                .saturating_sub(1)
                .min(last)
        }
    }

    /// Keeps the newest entries, up to the entry at which they cost at least `max`. Drops all older entries.
    pub(crate) fn drop_beyond(&mut self, max: u64) {
        let excess = self.cost_from(0).saturating_sub(max);
        if excess > 0 {
            // The entry that reaches excess + 1 stays: without it, the others would cost less than `max`.
            let count = self.reaching(0, excess + 1);
            self.header
                .set_range(self.number(count), self.len() - count);
        }
    }

    /// Whether this form can drop the first `expired` entries and append the operation's.
    #[inline(always)]
    pub(crate) fn can_push(&self, op: &Op<'_>, expired: usize) -> bool {
        let (len, capacity) = (self.len() - expired, self.entries.len());
        self.header.can_push::<E>(op, len, capacity)
            && can_encode::<E>(op, self.cost_from(expired))
            && len + usize::from(E::COSTS) < capacity
    }

    /// Drops the first `expired` entries, appends the operation's entry, and returns its number. Requires
    /// [`can_push`](Self::can_push).
    #[inline(always)]
    pub(crate) fn push(&mut self, expired: usize, op: &Op<'_>, at: Timestamp) -> u32 {
        let len = self.len();
        let total = if E::COSTS {
            self.total_before(len).wrapping_add(op.cost)
        } else {
            0
        };
        let number = self.number(len);
        self.write(len, at, total);
        self.newest = at.as_micros();
        self.header.set_newest::<E>(at, Lifetime::after_append(op));
        self.header
            .set_range(self.number(expired), len - expired + 1);
        number
    }

    /// Writes entry `i` behind the others. `total` is the total cost up to and including it.
    #[inline(always)]
    pub(super) fn write(&mut self, i: usize, at: Timestamp, total: u64) {
        let (index, next) = (self.index(self.number(i)), self.index(self.number(i + 1)));
        if let Some(entry) = self.entries.get_mut(index) {
            E::set_at(entry, at.as_micros());
        }
        if E::COSTS
            && let Some(entry) = self.entries.get_mut(next)
        {
            E::set_total_before(entry, total);
        }
    }
}

/// Searches for the first entry younger than `expired_age`, from entry `from` on. It takes its arguments in parts: a pointer to
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
    gallop(from, len as usize, |i| {
        entries
            .get(index(i))
            .is_some_and(|entry| E::age(entry, newest) >= expired_age)
    })
}

/// Marks the branch it is called in as unlikely.
#[cold]
fn unlikely() {}

/// The words of one entry. An entry that has a cost stores the total cost of all entries *before* it.
pub(crate) trait Encoding {
    type Entry: AsRef<[u32]> + AsMut<[u32]> + 'static;
    type Header: Header;
    const WORDS: usize = size_of::<Self::Entry>() / size_of::<u32>();
    /// How many words of an entry hold its time. The others hold the total.
    const TIME: usize;
    /// Whether entries have costs. Otherwise each costs 1.
    const COSTS: bool = Self::WORDS > Self::TIME;
    /// The largest age and the largest total cost.
    const RANGE: u64 = if Self::TIME == 1 {
        u32::MAX as u64
    } else {
        u64::MAX
    };
    /// How many words behind the entries are hints.
    const HINTS: usize;

    fn entries(words: &mut [u32]) -> &mut [Self::Entry];

    #[inline(always)]
    fn set_at(entry: &mut Self::Entry, at: u64) {
        write(&mut entry.as_mut()[..Self::TIME], at);
    }

    #[inline(always)]
    fn set_total_before(entry: &mut Self::Entry, total: u64) {
        write(&mut entry.as_mut()[Self::TIME..], total);
    }

    /// Returns how much older the entry is than the newest, whose time is an argument.
    #[inline(always)]
    fn age(entry: &Self::Entry, newest: u64) -> u64 {
        newest.wrapping_sub(read(&entry.as_ref()[..Self::TIME])) & Self::RANGE
    }

    /// Returns the total cost of all entries before this one, modulo [`RANGE`](Self::RANGE) + 1.
    #[inline(always)]
    fn total_before(entry: &Self::Entry) -> u64 {
        read(&entry.as_ref()[Self::TIME..])
    }
}

/// The range of entry numbers, which are consecutive modulo 2^32.
pub(crate) trait Header {
    /// Whether the log has more than four entries at times.
    const GROWS: bool;

    /// Returns the first entry's number.
    fn first(&self) -> u32;

    fn len(&self) -> usize;

    /// Sets the first entry's number, and how many entries there are.
    fn set_range(&mut self, first: u32, len: usize);

    fn set_newest<E: Encoding>(&mut self, at: Timestamp, kept: Lifetime);

    /// Whether the log can append the operation's entry to `len` others without a conversion, as far as the header decides.
    fn can_push<E: Encoding>(&self, op: &Op<'_>, len: usize, capacity: usize) -> bool;
}

/// An entry of `WORDS` words. The first `TIME` hold the time, the rest, if any, the total.
pub(crate) struct Words<const WORDS: usize, const TIME: usize, const HINTS: usize, H>(
    PhantomData<H>,
);

/// Whether this encoding can express the operation's entry next to entries that cost `held`.
#[inline(always)]
pub(crate) fn can_encode<E: Encoding>(op: &Op<'_>, held: u64) -> bool {
    let cost = if E::COSTS {
        held.saturating_add(op.cost) <= E::RANGE
    } else {
        op.cost == 1
    };
    cost && u32::from(retention_zeros(op)) >= E::RANGE.leading_zeros()
}

impl<const WORDS: usize, const TIME: usize, const HINTS: usize, H: Header> Encoding
    for Words<WORDS, TIME, HINTS, H>
{
    type Entry = [u32; WORDS];
    type Header = H;
    const TIME: usize = TIME;
    const HINTS: usize = HINTS;

    #[inline(always)]
    fn entries(words: &mut [u32]) -> &mut [Self::Entry] {
        words.as_chunks_mut().0
    }
}

#[inline(always)]
fn write(words: &mut [u32], number: u64) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = (number >> (32 * i)) as u32;
    }
}

#[inline(always)]
fn read(words: &[u32]) -> u64 {
    words
        .iter()
        .rev()
        .fold(0, |number, word| number << 32 | u64::from(*word))
}

/// The number and time of the oldest entry that counted. While it counts, an operation does not read the front of the block,
/// which saves a cache miss. Kept in buckets, for narrow entries without costs and with one limit.
#[derive(Clone, Copy)]
pub(crate) struct Oldest {
    number: u32,
    /// The low half of the time.
    low: u32,
}

impl Oldest {
    /// Names no entry of a log whose first entry has this number.
    pub(crate) fn none(first: u32) -> Self {
        Self {
            number: first.wrapping_sub(1),
            low: 0,
        }
    }
}
