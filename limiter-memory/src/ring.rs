//! A log of any number of entries without ids, in one block of memory.

use std::marker::PhantomData;

use limiter_core::{MAX_LIMITS, Op, Timestamp, Window};

use crate::entries::{Entries, boundary, gallop};
use crate::keep::Keep;
use crate::layout::{Form, Layout, Narrow, NarrowCosts, Wide, WideCosts};

/// How many words of a ring are hints, if it has any: where each limit's window began the last time, as a number, which
/// is the place to look for it the next time. A log of one limit has no need for them, as its window begins the log.
pub(crate) const HINTS: usize = MAX_LIMITS;

/// How many entries there is room for at first. Rings with much more are shrunk when three quarters of it are empty.
const SMALLEST: usize = 8;
const SHRINK_ABOVE: usize = 4 * SMALLEST;
/// Whether a ring is to be shrunk is seen once in a round of so many appends, or of as many as it has places for.
const ROUND: usize = 256;

/// What the newest entry's time leaves of its word says the [`Form`], whether there are hints, and the [`Keep`].
const FORM_SHIFT: u32 = 53;
const HINTS_SHIFT: u32 = FORM_SHIFT + 2;
const KEEP_SHIFT: u32 = HINTS_SHIFT + 1;
const _: () = assert!(Timestamp::MAX.as_micros() < 1 << FORM_SHIFT && KEEP_SHIFT + Keep::BITS <= u64::BITS);

/// Entries in the order in which they were appended: the one with number `n` at the place `n` modulo the room, which is
/// a power of two. Behind them are the hints.
pub(crate) struct Ring {
    words: Box<[u32]>,
    newest: u64,
    number: u32,
    len: u32,
}

impl Ring {
    /// The same log, which has this form, in one that takes the operation's entry next, if any does: none takes one with
    /// an id.
    pub(crate) fn holding(entries: &impl Entries, op: &Op<'_>, keep: Keep, form: Form) -> Self {
        let costs = form.costs || op.cost != 1;
        let held = entries.cost_from(0);
        let narrow = !form.wide && if costs { takes::<NarrowCosts>(op, held) } else { takes::<Narrow>(op, held) };
        match (narrow, costs) {
            (true, false) => Self::copy::<Narrow, 0>(entries, keep),
            (false, false) => Self::copy::<Wide, 0>(entries, keep),
            (true, true) => Self::copy::<NarrowCosts, 0>(entries, keep),
            (false, true) => Self::copy::<WideCosts, 0>(entries, keep),
        }
    }

    fn copy<L: Layout, const H: usize>(entries: &impl Entries, keep: Keep) -> Self {
        let len = entries.len();
        let room = (len + 2).next_power_of_two().max(SMALLEST);
        let mut ring = Self {
            words: block::<L, H>(room),
            newest: stamp::<L, H>(entries.newest().unwrap_or(Timestamp::EPOCH), keep),
            number: entries.number(0),
            len: len as u32,
        };
        let (all, mut view) = (entries.cost_from(0), ring.view::<L, H>());
        for i in 0..len {
            view.write(i, entries.at(i), all - entries.cost_from(i + 1));
        }
        ring
    }

    /// Gives the ring hints if it has none.
    #[inline]
    pub(crate) fn hint(&mut self) {
        if !self.has_hints() {
            self.add_hints();
        }
    }

    #[cold]
    fn add_hints(&mut self) {
        let keep = self.keep();
        let Form { wide, costs } = self.form();
        *self = match (wide, costs) {
            (false, false) => Self::copy::<Narrow, HINTS>(&self.view::<Narrow, 0>(), keep),
            (true, false) => Self::copy::<Wide, HINTS>(&self.view::<Wide, 0>(), keep),
            (false, true) => Self::copy::<NarrowCosts, HINTS>(&self.view::<NarrowCosts, 0>(), keep),
            (true, true) => Self::copy::<WideCosts, HINTS>(&self.view::<WideCosts, 0>(), keep),
        };
    }

    pub(crate) fn form(&self) -> Form {
        let bits = self.newest >> FORM_SHIFT;
        Form { wide: bits & 1 == 1, costs: bits >> 1 & 1 == 1 }
    }

    #[inline(always)]
    pub(crate) fn has_hints(&self) -> bool {
        self.newest >> HINTS_SHIFT & 1 == 1
    }

    /// Whether the entries are of this layout, and with so many hints.
    #[inline(always)]
    pub(crate) fn is<L: Layout, const H: usize>(&self) -> bool {
        self.newest >> FORM_SHIFT & 7 == stamp::<L, H>(Timestamp::EPOCH, Keep::default()) >> FORM_SHIFT
    }

    #[inline]
    pub(crate) fn keep(&self) -> Keep {
        Keep::from_bits(self.newest >> KEEP_SHIFT)
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        (self.len > 0).then(|| Timestamp::from_low_bits(self.newest))
    }

    #[inline(always)]
    fn newest_micros(&self) -> u64 {
        Timestamp::from_low_bits(self.newest).as_micros()
    }

    /// The ring as what it [is](Self::is).
    #[inline(always)]
    pub(crate) fn view<L: Layout, const H: usize>(&mut self) -> View<'_, L, H> {
        debug_assert!(self.is::<L, H>());
        View { ring: self, layout: PhantomData }
    }
}

/// Calls a function with the ring's entries.
macro_rules! with_entries {
    ($ring:expr, $entries:ident => $body:expr) => {
        match ($ring.form().wide, $ring.form().costs, $ring.has_hints()) {
            (false, false, false) => with_entries!($ring, Narrow, 0, $entries => $body),
            (false, false, true) => with_entries!($ring, Narrow, HINTS, $entries => $body),
            (true, false, false) => with_entries!($ring, Wide, 0, $entries => $body),
            (true, false, true) => with_entries!($ring, Wide, HINTS, $entries => $body),
            (false, true, false) => with_entries!($ring, NarrowCosts, 0, $entries => $body),
            (false, true, true) => with_entries!($ring, NarrowCosts, HINTS, $entries => $body),
            (true, true, false) => with_entries!($ring, WideCosts, 0, $entries => $body),
            (true, true, true) => with_entries!($ring, WideCosts, HINTS, $entries => $body),
        }
    };
    ($ring:expr, $layout:ident, $hints:expr, $entries:ident => $body:expr) => {{
        let $entries = &mut $ring.view::<$crate::layout::$layout, { $hints }>();
        $body
    }};
}
pub(crate) use with_entries;

fn block<L: Layout, const H: usize>(room: usize) -> Box<[u32]> {
    vec![0; H + room * L::WORDS].into_boxed_slice()
}

#[inline(always)]
fn stamp<L: Layout, const H: usize>(at: Timestamp, keep: Keep) -> u64 {
    let (form, hints) = (u64::from(L::FORM.wide) | u64::from(L::FORM.costs) << 1, u64::from(H > 0));
    at.as_micros() | form << FORM_SHIFT | hints << HINTS_SHIFT | keep.to_bits() << KEEP_SHIFT
}

/// Whether a log of this layout takes the operation's entry beside entries that cost `held`.
#[inline(always)]
fn takes<L: Layout>(op: &Op<'_>, held: u64) -> bool {
    let cost = if L::COSTS { held.saturating_add(op.cost) <= L::RANGE } else { op.cost == 1 };
    cost && op.policy.longest_window().as_micros() <= L::RANGE
}

/// A ring of this layout, and with so many hints.
pub(crate) struct View<'a, L, const H: usize> {
    ring: &'a mut Ring,
    layout: PhantomData<L>,
}

impl<L: Layout, const H: usize> View<'_, L, H> {
    /// How many words the entries have: a power of two.
    #[inline(always)]
    fn places(&self) -> usize {
        self.ring.words.len().saturating_sub(H)
    }

    /// How many entries there is room for. One place stays empty: the one before the first entry, which tells the total
    /// before it.
    #[inline(always)]
    fn room(&self) -> usize {
        self.places() / L::WORDS
    }

    /// Where the `i`-th entry is; -1 is the last one that was dropped.
    #[inline(always)]
    fn place(&self, i: usize) -> usize {
        (self.ring.number as usize).wrapping_add(i).wrapping_mul(L::WORDS) & self.places().wrapping_sub(1)
    }

    #[inline(always)]
    fn age(&self, i: usize) -> u64 {
        // Never so; and then the compiler need not check the places.
        if self.places() == 0 {
            return 0;
        }
        L::age(&self.ring.words, self.place(i), self.ring.newest_micros())
    }

    #[inline(always)]
    fn write(&mut self, i: usize, at: Timestamp, total: u64) {
        let place = self.place(i);
        L::write(&mut self.ring.words, place, at.as_micros(), total);
    }

    #[inline(always)]
    fn total_before(&self, i: usize) -> u64 {
        L::total(&self.ring.words, self.place(i.wrapping_sub(1)))
    }

    #[inline(always)]
    fn hint(&self, limit: usize) -> usize {
        let hints = self.ring.words.last_chunk::<H>();
        let hint = hints.and_then(|hints| hints.get(limit)).copied().unwrap_or_default();
        let hint = hint.wrapping_sub(self.ring.number) as usize;
        if hint <= self.len() { hint } else { 0 }
    }

    /// Whether the `i`-th entry has left a window, which one this much older than the newest has.
    #[inline(always)]
    fn has_left(&self, i: usize, oldest: u64) -> bool {
        self.age(i) >= oldest
    }

    /// Where the window starts: looked for from `near` on.
    #[inline(never)]
    fn moved_start(&self, oldest: u64, near: usize) -> usize {
        boundary(near, self.len(), |i| self.has_left(i, oldest))
    }

    /// Makes room for one more than the first `len` entries, or returns what is too much: once in a round, so that a log
    /// that empties and fills in turns keeps its block.
    #[cold]
    #[inline(never)]
    fn adjust_room(&mut self, len: usize) {
        let room = self.room();
        if len + 1 >= room {
            self.resize(2 * room, len);
        } else if len < room / 4 && room > SHRINK_ABOVE {
            self.resize(room / 2, len);
        }
    }

    /// Gives the first `len` entries another block with this room.
    fn resize(&mut self, room: usize, len: usize) {
        let Ring { newest, number, .. } = *self.ring;
        let mut ring = Ring { words: block::<L, H>(room), newest, number, len: 0 };
        for (to, from) in ring.words.iter_mut().rev().zip(self.ring.words.iter().rev()).take(H) {
            *to = *from;
        }
        let mut view = ring.view::<L, H>();
        view.write(usize::MAX, Timestamp::EPOCH, self.total_before(0));
        for i in 0..len {
            view.write(i, self.at(i), self.total_before(i + 1));
        }
        self.ring.words = ring.words;
    }
}

impl<L: Layout, const H: usize> Entries for View<'_, L, H> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.ring.len as usize
    }

    #[inline(always)]
    fn at(&self, i: usize) -> Timestamp {
        Timestamp::from_low_bits(self.ring.newest.wrapping_sub(self.age(i)))
    }

    #[inline(always)]
    fn newest(&self) -> Option<Timestamp> {
        self.ring.newest()
    }

    #[inline(always)]
    fn not_before(&self, now: Timestamp) -> Timestamp {
        // A ring is empty only until its first entry comes, and its newest time the epoch as long.
        Timestamp::from_low_bits(self.ring.newest).max(now)
    }

    #[inline(always)]
    fn number(&self, i: usize) -> u32 {
        self.ring.number.wrapping_add(i as u32)
    }

    #[inline(always)]
    fn start<const N: usize>(&self, limit: usize, window: Window, now: Timestamp) -> usize {
        let len = self.len();
        let since = now.as_micros().wrapping_sub(self.ring.newest_micros());
        if since >= window.as_micros() {
            return len;
        }
        let oldest = window.as_micros() - since;
        if N > 1 {
            let hint = self.hint(limit);
            // Of several windows most stay where they were.
            if (hint == 0 || self.has_left(hint - 1, oldest)) && (hint == len || !self.has_left(hint, oldest)) {
                return hint;
            }
            return self.moved_start(oldest, hint);
        }
        // Without a branch on the number of entries that have left: no processor could foretell it.
        const NEAR: usize = 4;
        let left: usize = if len >= NEAR {
            (0..NEAR).map(|i| usize::from(self.has_left(i, oldest))).sum()
        } else {
            (0..NEAR).map(|i| usize::from(i < len) & usize::from(self.has_left(i, oldest))).sum()
        };
        if left == NEAR { self.moved_start(oldest, left) } else { left }
    }

    #[inline(always)]
    fn remember(&mut self, limit: usize, start: usize) {
        let hint = self.ring.number.wrapping_add(start as u32);
        if let Some(word) = self.ring.words.last_chunk_mut::<H>().and_then(|hints| hints.get_mut(limit)) {
            *word = hint;
        }
    }

    #[inline(always)]
    fn cost_from(&self, start: usize) -> u64 {
        if L::COSTS {
            self.total_before(self.len()).wrapping_sub(self.total_before(start)) & L::RANGE
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
        self.ring.number = self.ring.number.wrapping_add(dropped as u32);
        self.ring.len -= dropped as u32;
    }

    #[inline(always)]
    fn takes(&self, op: &Op<'_>, held: u64) -> bool {
        takes::<L>(op, held)
    }

    #[inline(always)]
    fn push(&mut self, dropped: usize, op: &Op<'_>, at: Timestamp) -> u32 {
        let total = if L::COSTS { self.total_before(self.len()).wrapping_add(op.cost) } else { 0 };
        let (number, len) = (self.ring.number.wrapping_add(dropped as u32), self.len() - dropped);
        self.ring.number = number;
        self.ring.len = len as u32 + 1;
        self.ring.newest = stamp::<L, H>(at, Keep::for_append(op));
        let (place, number) = (self.place(len), number.wrapping_add(len as u32));
        if (len + 1) * L::WORDS >= self.places() || number as usize & (self.places().wrapping_sub(1) | (ROUND - 1)) == 0
        {
            self.adjust_room(len);
            self.write(len, at, total);
        } else {
            L::write(&mut self.ring.words, place, at.as_micros(), total);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Limit, Policy};

    use super::*;
    use crate::few::Few;

    #[test]
    fn a_ring_returns_the_room_that_it_does_not_need() {
        let policy = Policy::from(Limit::per_second(1_000_000).unwrap());
        let op = Op::acquire("", &policy);
        let mut ring = Ring::holding(&Few::new(u32::MAX - 20_000), &op, Keep::default(), Form::default());
        let mut push = |dropped, micros| {
            let at = Timestamp::from_micros(micros).unwrap();
            let mut view = ring.view::<Narrow, 0>();
            view.push(dropped, &op, at);
            assert_eq!((view.at(view.len() - 1), view.newest()), (at, Some(at)));
            (view.room(), view.len())
        };
        for micros in 0..100_000 {
            push(0, micros);
        }
        assert_eq!(push(99_990, 100_000), (1 << 17, 11));
        for micros in 0..3 << 17 {
            push(1, 100_001 + micros);
        }
        assert_eq!(push(1, 1 << 20), (SHRINK_ABOVE, 11));
    }

    #[test]
    fn every_start_is_found_from_every_hint() {
        let policy = Policy::new([Limit::per_second(100).unwrap(), Limit::per_minute(100).unwrap()]).unwrap();
        let op = Op::acquire("", &policy);
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let mut ring = Ring::holding(&Few::new(9), &op, Keep::default(), Form::default());
        ring.hint();
        let mut view = ring.view::<Narrow, HINTS>();
        // Behind the newest entry are the remains of those that have been dropped.
        for micros in 0..40 {
            view.push(usize::from(view.len() == 13), &op, at(10 * micros));
        }
        let first = view.at(0).as_micros();
        for window in (5..200).step_by(5).map(|micros| Window::from_micros(micros).unwrap()) {
            for now in [390, 391, 395, 400, 450, 600].map(at) {
                let counts = |i: &usize| window.counts(view.at(*i), now);
                let wanted = (0..view.len()).find(counts).unwrap_or(view.len());
                for hint in 0..=view.len() + 1 {
                    view.remember(1, hint);
                    assert_eq!(
                        view.start::<2>(1, window, now),
                        wanted,
                        "{window:?} at {now:?} from {hint}, since {first}"
                    );
                    view.remember(0, hint);
                    assert_eq!(
                        view.start::<1>(0, window, now),
                        wanted,
                        "{window:?} at {now:?} from {hint}, since {first}"
                    );
                }
            }
        }
    }
}
