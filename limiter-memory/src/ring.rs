//! A log of any number of entries without ids, in one block of memory.

use crate::entries::{Entries, boundary, gallop, later};
use crate::form::{Form, in_form};
use crate::keep::Keep;
use crate::layout::{Layout, Narrow, NarrowCosts, fits};
use limiter_core::store::Op;
use limiter_core::{MAX_LIMITS, Timestamp, Window, internal};

/// How many words of a ring are hints, if it has any: where each limit's window began the last time, as a number, which
/// is the place to look for it the next time. A log of one limit has no need for them, as its window begins the log.
pub(crate) const HINTS: usize = MAX_LIMITS;

/// How many entries there is room for at first. Rings with much more are shrunk when three quarters of it are empty.
const SMALLEST: usize = 8;
const SHRINK_ABOVE: usize = 4 * SMALLEST;
/// Longer logs take the sparse form, because a ring counts in 32 bits.
pub(crate) const MOST: usize = 1 << 31;
/// Whether a ring is to be shrunk is seen once in a round of so many appends, or of as many as it has places for: a log
/// that empties and fills in turns keeps its block.
const ROUND: usize = 256;

/// What the newest entry's time leaves of its word says the [`Form`] and the [`Keep`].
const FORM_SHIFT: u32 = 53;
const KEEP_SHIFT: u32 = FORM_SHIFT + Form::BITS;
const _: () = assert!(Timestamp::MAX.as_micros() < 1 << FORM_SHIFT && KEEP_SHIFT + Keep::BITS <= u64::BITS);

/// Entries in the order in which they were appended: the one with number `n` at the place `n` modulo the room, which is
/// a power of two. Behind them are the hints.
pub(crate) struct Ring {
    words: Box<[u32]>,
    extent: Extent,
}

/// Which entries there are.
struct Extent {
    /// The newest entry's time, the [`Form`] and the [`Keep`].
    newest: u64,
    /// The first entry's number.
    number: u32,
    len: u32,
}

impl Extent {
    #[inline(always)]
    fn newest(&self) -> Option<Timestamp> {
        (self.len > 0).then(|| internal::timestamp_from_low_bits(self.newest))
    }

    /// Of the `i`-th entry.
    #[inline(always)]
    fn number(&self, i: usize) -> u32 {
        self.number.wrapping_add(i as u32)
    }
}

impl Ring {
    /// The entries from the `from`-th on of a log that has this form, in a ring that takes the operation's entry next.
    pub(crate) fn holding(entries: &impl Entries, from: usize, op: &Op<'_>, keep: Keep, mut form: Form) -> Self {
        form.costs |= op.cost != 1;
        form.hints |= op.policy.limits().len() > 1;
        let held = entries.cost_from(from);
        form.wide |= !if form.costs { fits::<NarrowCosts>(op, held) } else { fits::<Narrow>(op, held) };
        in_form!(form, L, H => Self::copy::<L, H>(entries, from, keep))
    }

    fn copy<L: Layout, const H: usize>(entries: &impl Entries, from: usize, keep: Keep) -> Self {
        let len = entries.len() - from;
        let room = (len + 2).next_power_of_two().max(SMALLEST);
        let mut ring = Self {
            words: vec![0; H + room * L::WORDS].into_boxed_slice(),
            extent: Extent {
                newest: stamp::<L, H>(entries.newest().unwrap_or(Timestamp::EPOCH), keep),
                number: entries.number(from) as u32,
                len: len as u32,
            },
        };
        let (all, mut view) = (entries.cost_from(from), ring.view::<L, H>());
        for i in 0..len {
            view.write(i, entries.at(from + i), all - entries.cost_from(from + i + 1));
        }
        ring
    }

    pub(crate) fn form(&self) -> Form {
        Form::from_bits(self.extent.newest >> FORM_SHIFT)
    }

    /// Whether the entries are of this layout, and with so many hints.
    #[inline(always)]
    pub(crate) fn is<L: Layout, const H: usize>(&self) -> bool {
        self.extent.newest >> FORM_SHIFT & ((1 << Form::BITS) - 1) == const { Form::of::<L, H>().to_bits() }
    }

    pub(crate) fn keep(&self) -> Keep {
        Keep::from_bits(self.extent.newest >> KEEP_SHIFT)
    }

    pub(crate) fn len(&self) -> usize {
        self.extent.len as usize
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        self.extent.newest()
    }

    /// The ring as what it [is](Self::is).
    #[inline(always)]
    pub(crate) fn view<L: Layout, const H: usize>(&mut self) -> View<'_, L, H> {
        debug_assert!(self.is::<L, H>());
        let (entries, hints) = match self.words.split_last_chunk_mut() {
            Some((entries, hints)) => (L::entries(entries), Some(hints)),
            None => (&mut [][..], None),
        };
        View { entries, hints, extent: &mut self.extent }
    }
}

#[inline(always)]
fn stamp<L: Layout, const H: usize>(at: Timestamp, keep: Keep) -> u64 {
    at.as_micros() | const { Form::of::<L, H>().to_bits() << FORM_SHIFT } | keep.to_bits() << KEEP_SHIFT
}

/// A ring of this layout, and with so many hints.
pub(crate) struct View<'a, L: Layout, const H: usize> {
    /// A power of two of places. One stays empty: the one behind the last entry, which tells the total before it.
    entries: &'a mut [L::Words],
    hints: Option<&'a mut [u32; H]>,
    extent: &'a mut Extent,
}

/// What can be read of a view.
struct Read<'a, L: Layout> {
    entries: &'a [L::Words],
    /// As in the [`Extent`].
    newest: u64,
    number: u32,
}

impl<'a, L: Layout> Read<'a, L> {
    /// How many entries there is room for; all of its bits are set.
    #[inline(always)]
    fn room(&self) -> usize {
        self.entries.len().wrapping_sub(1)
    }

    /// Where the `i`-th entry is.
    #[inline(always)]
    fn place(&self, i: usize) -> usize {
        (self.number as usize).wrapping_add(i) & self.room()
    }

    /// How much older than the newest entry the `i`-th is.
    #[inline(always)]
    fn age(&self, i: usize) -> u64 {
        self.age_of((self.number as usize).wrapping_add(i))
    }

    /// The same of the entry with this number, modulo the room.
    #[inline(always)]
    fn age_of(&self, number: usize) -> u64 {
        self.entries.get(number & self.room()).map_or(0, |entry| L::age(entry, self.newest_micros()))
    }

    #[inline(always)]
    fn at_age(&self, age: u64) -> Timestamp {
        internal::timestamp_from_low_bits(self.newest.wrapping_sub(age))
    }

    #[inline(always)]
    fn newest_micros(&self) -> u64 {
        internal::timestamp_from_low_bits(self.newest).as_micros()
    }

    /// Whether the `i`-th entry has left a window, which one this much older than the newest has.
    #[inline(always)]
    fn has_left(&self, i: usize, oldest: u64) -> bool {
        self.age(i) >= oldest
    }

    #[inline(always)]
    fn total_before(&self, i: usize) -> u64 {
        self.entries.get(self.place(i)).map_or(0, L::before)
    }

    /// Where the window starts: looked for from `near` on. Each argument on its own: a struct would be written to memory,
    /// whether this is called or not.
    #[inline(never)]
    fn moved_start(entries: &'a [L::Words], newest: u64, number: u32, len: u32, oldest: u64, near: usize) -> usize {
        let read = Self { entries, newest, number };
        boundary(near, len as usize, |i| read.has_left(i, oldest))
    }
}

impl<L: Layout, const H: usize> View<'_, L, H> {
    /// Never so; but the compiler need not check the places if it is told.
    #[inline(always)]
    pub(crate) fn has_no_room(&self) -> bool {
        self.entries.is_empty() || self.hints.is_none()
    }

    #[inline(always)]
    fn read(&self) -> Read<'_, L> {
        Read { entries: self.entries, newest: self.extent.newest, number: self.extent.number }
    }

    /// Writes the `i`-th entry behind the others, which with it cost `total`.
    #[inline(always)]
    fn write(&mut self, i: usize, at: Timestamp, total: u64) {
        let (place, next) = (self.read().place(i), self.read().place(i + 1));
        if let Some(entry) = self.entries.get_mut(place) {
            L::set_at(entry, at.as_micros());
        }
        if L::COSTS
            && let Some(entry) = self.entries.get_mut(next)
        {
            L::set_before(entry, total);
        }
    }

    #[inline(always)]
    fn hint(&self, limit: usize) -> u32 {
        self.hints.as_ref().and_then(|hints| hints.get(limit)).copied().unwrap_or_default()
    }

    /// Whether so many entries should have a smaller ring than one with this room.
    #[cold]
    fn are_few(room: usize, entries: usize) -> bool {
        entries < room / 4 && room > SHRINK_ABOVE
    }
}

impl<L: Layout, const H: usize> Entries for View<'_, L, H> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.extent.len as usize
    }

    #[inline(always)]
    fn at(&self, i: usize) -> Timestamp {
        let read = self.read();
        read.at_age(read.age(i))
    }

    #[inline(always)]
    fn newest(&self) -> Option<Timestamp> {
        self.extent.newest()
    }

    #[inline(always)]
    fn not_before(&self, now: Timestamp) -> Timestamp {
        // A ring is empty only until its first entry comes, and its newest time the epoch as long.
        later(internal::timestamp_from_low_bits(self.extent.newest), now)
    }

    #[inline(always)]
    fn number(&self, i: usize) -> u64 {
        u64::from(self.extent.number(i))
    }

    #[inline(always)]
    fn first<const N: usize>(&self, limit: usize, window: Window, now: Timestamp) -> (usize, Timestamp) {
        let (len, read) = (self.len(), self.read());
        let since = now.as_micros().wrapping_sub(read.newest_micros());
        if since >= window.as_micros() {
            return (len, now);
        }
        let oldest = window.as_micros() - since;
        let moved = |near| Read::<L>::moved_start(self.entries, read.newest, read.number, len as u32, oldest, near);
        if N > 1 {
            // Of several windows most stay where they were. Before the first entry is one that was dropped, or none that
            // can be told from one; if it seems not to have left, the search is for nothing.
            let hint = self.hint(limit);
            let start = hint.wrapping_sub(read.number) as usize;
            let (before, age) = (read.age_of((hint as usize).wrapping_sub(1)), read.age_of(hint as usize));
            if start < len && before >= oldest && age < oldest {
                return (start, read.at_age(age));
            }
            let start = moved(start);
            return (start, self.at(start));
        }
        // Without a branch on the number of entries that have left: no processor could foretell it.
        const NEAR: usize = 4;
        let left: usize = if len >= NEAR {
            (0..NEAR).map(|i| usize::from(read.has_left(i, oldest))).sum()
        } else {
            (0..NEAR).map(|i| usize::from(i < len) & usize::from(read.has_left(i, oldest))).sum()
        };
        let start = if left == NEAR { moved(left) } else { left };
        (start, self.at(start))
    }

    #[inline(always)]
    fn remember(&mut self, starts: impl Iterator<Item = usize>) {
        let first = self.extent.number;
        for (hint, start) in self.hints.iter_mut().flat_map(|hints| hints.iter_mut()).zip(starts) {
            *hint = first.wrapping_add(start as u32);
        }
    }

    #[inline(always)]
    fn cost_from(&self, start: usize) -> u64 {
        if L::COSTS {
            let read = self.read();
            read.total_before(self.len()).wrapping_sub(read.total_before(start)) & L::RANGE
        } else {
            (self.len() - start) as u64
        }
    }

    #[inline]
    fn reaching(&self, start: usize, cost: u64) -> usize {
        let last = self.len().saturating_sub(1);
        if L::COSTS {
            let all = self.cost_from(start);
            gallop(start, last, |i| all - self.cost_from(i + 1) < cost)
        } else {
            start.saturating_add(cost as usize).saturating_sub(1).min(last)
        }
    }

    fn drop_front(&mut self, dropped: usize) {
        self.extent.number = self.extent.number(dropped);
        self.extent.len -= dropped as u32;
    }

    #[inline(always)]
    fn takes<const N: usize>(&self, op: &Op<'_>, from: usize) -> bool {
        let (kept, room) = (self.len() - from, self.read().room());
        let round = self.number(self.len()) as usize & (room | (ROUND - 1)) == 0;
        if round && Self::are_few(room, kept) {
            return false;
        }
        (H > 0 || N == 1) && fits::<L>(op, self.cost_from(from)) && kept < room
    }

    #[inline(always)]
    fn push(&mut self, dropped: usize, op: &Op<'_>, at: Timestamp) -> u64 {
        let len = self.len();
        let total = if L::COSTS { self.read().total_before(len).wrapping_add(op.cost) } else { 0 };
        let number = self.number(len);
        self.write(len, at, total);
        self.extent.newest = stamp::<L, H>(at, Keep::for_append(op));
        self.extent.number = self.extent.number(dropped);
        self.extent.len = (len - dropped) as u32 + 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Limit, Policy};

    use super::*;
    use crate::few::Few;
    use crate::log::Log;

    #[test]
    fn a_ring_returns_the_room_that_it_does_not_need() {
        let second = 1_000_000;
        let policy = Policy::from(Limit::per_second(second).unwrap());
        let mut log = Log::new(Few::NUMBERS - 20_000);
        let mut append = |micros| {
            let at = Timestamp::from_micros(micros).unwrap();
            let op = Op::acquire("", &policy).at(at);
            let facts = log.apply(op, at);
            assert_eq!((facts.log.usage[0].used, log.newest()), (log.len() as u64, Some(at)));
            let Log::Ring(ring) = &mut log else { return (0, log.len()) };
            let view = ring.view::<Narrow, 0>();
            assert_eq!((view.at(view.len() - 1), view.newest()), (at, Some(at)));
            (ring.words.len(), ring.len())
        };
        for micros in 0..100_000 {
            append(micros);
        }
        assert_eq!(append(second + 99_990), (1 << 17, 10));
        let since = second + 99_990;
        for i in 1..3 << 17 {
            append(since + i * second / 11);
        }
        assert_eq!(append(since + (3 << 17) * second / 11), (2 * SMALLEST, 11));
    }

    #[test]
    fn a_ring_that_is_made_anew_leaves_what_has_expired_and_has_hints_once_there_are_several_limits() {
        let one = Policy::from(Limit::per_second(1000).unwrap());
        let two = Policy::new([Limit::per_second(1000).unwrap(), Limit::per_minute(1000).unwrap()]).unwrap();
        let mut log = Log::new(0);
        let mut append = |policy: &Policy, cost, micros| {
            let at = Timestamp::from_micros(micros).unwrap();
            log.apply(Op::acquire("", policy).with_cost(cost).at(at), at);
            let Log::Ring(ring) = &log else { return None };
            Some((ring.form(), ring.words.len(), ring.len()))
        };
        for micros in 0..100 {
            append(&one, 1, micros);
        }
        assert_eq!(append(&one, 1, 100), Some((Form::default(), 128, 101)));
        let costs = Form { costs: true, ..Form::default() };
        assert_eq!(append(&one, 2, 2_000_000), Some((costs, 2 * SMALLEST, 1)));
        let hints = Form { hints: true, ..costs };
        assert_eq!(append(&two, 1, 2_000_000), Some((hints, 2 * SMALLEST + HINTS, 2)));
    }

    #[test]
    fn every_start_is_found_from_every_hint() {
        let policy = Policy::new([Limit::per_second(100).unwrap(), Limit::per_minute(100).unwrap()]).unwrap();
        let op = Op::acquire("", &policy);
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let mut ring = Ring::holding(&Few::new(9), 0, &op, Keep::default(), Form::default());
        // In the end, the first number is before the largest, and the last one behind it.
        ring.extent.number = u32::MAX - 32;
        // Behind the newest entry are the remains of those that have been dropped.
        for micros in 0..40 {
            let mut view = ring.view::<Narrow, HINTS>();
            let dropped = usize::from(view.len() == 13);
            if view.takes::<2>(&op, dropped) {
                view.push(dropped, &op, at(10 * micros));
            } else {
                ring = Ring::holding(&view, dropped, &op, Keep::default(), Form { hints: true, ..Form::default() });
                ring.view::<Narrow, HINTS>().push(0, &op, at(10 * micros));
            }
        }
        let mut view = ring.view::<Narrow, HINTS>();
        let first = view.at(0).as_micros();
        for window in (5..200).step_by(5).map(|micros| Window::from_micros(micros).unwrap()) {
            for now in [390, 391, 395, 400, 450, 600].map(at) {
                let counts = |i: &usize| window.counts(view.at(*i), now);
                let start = (0..view.len()).find(counts).unwrap_or(view.len());
                let wanted = (start, if start < view.len() { view.at(start) } else { now });
                for hint in 0..=view.len() + 1 {
                    let what = format!("{window:?} at {now:?} from {hint}, since {first}");
                    view.remember([0, hint].into_iter());
                    assert_eq!(view.first::<2>(1, window, now), wanted, "{what}");
                    view.remember([hint].into_iter());
                    assert_eq!(view.first::<1>(0, window, now), wanted, "{what}");
                }
            }
        }
    }
}
