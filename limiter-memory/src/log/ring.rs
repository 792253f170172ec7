//! The ring: a log of any number of entries without ids, in one block of memory.

use limiter_core::store::Op;
use limiter_core::{MAX_LIMITS, Timestamp};

use super::lifetime::Lifetime;
use super::view::{Encoding, Header, Oldest, View, Words, can_encode};

/// The low half of the time: 4 bytes, for windows of up to 71 minutes.
pub(crate) type Narrow<const HINTS: usize = 0, H = RingHeader> = Words<1, 1, HINTS, H>;
/// The low halves of the time and of the total: 8 bytes.
pub(crate) type NarrowCosts<const HINTS: usize = 0> = Words<2, 1, HINTS, RingHeader>;
/// The time: 8 bytes.
pub(crate) type Wide<const HINTS: usize = 0> = Words<2, 2, HINTS, RingHeader>;
/// The time and the total: 16 bytes.
pub(crate) type WideCosts<const HINTS: usize = 0> = Words<4, 2, HINTS, RingHeader>;

/// The words behind the entries of a ring with hints: the number of the entry at which each limit's window began the last time.
/// A log of one limit needs none, because its window begins at the first entry.
pub(crate) const HINTS: usize = MAX_LIMITS;

/// The format of a ring's block, in three bits of the ring's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Format {
    /// Whole times and totals, not only their low halves.
    pub(crate) wide: bool,
    pub(crate) costs: bool,
    /// [`HINTS`] behind the entries.
    pub(crate) hints: bool,
}

impl Format {
    pub(crate) const BITS: u32 = 3;

    #[inline(always)]
    pub(crate) const fn of<E: Encoding>() -> Self {
        Self {
            wide: E::RANGE == u64::MAX,
            costs: E::COSTS,
            hints: E::HINTS > 0,
        }
    }

    #[inline(always)]
    pub(crate) const fn to_bits(self) -> u64 {
        self.costs as u64 | (self.wide as u64) << 1 | (self.hints as u64) << 2
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self {
            costs: bits & 1 > 0,
            wide: bits & 2 > 0,
            hints: bits & 4 > 0,
        }
    }
}

/// Evaluates an expression with a format's [`Encoding`] as a type. A macro, because a closure cannot take a type.
macro_rules! with_format {
    ($format:expr, $encoding:ident => $body:expr) => {{
        use $crate::log::ring::{Format, Narrow, NarrowCosts, Wide, WideCosts};
        let format: Format = $format;
        match (format.wide, format.costs) {
            (false, false) => $crate::log::ring::with_format!(@hints format, Narrow, $encoding => $body),
            (false, true) => $crate::log::ring::with_format!(@hints format, NarrowCosts, $encoding => $body),
            (true, false) => $crate::log::ring::with_format!(@hints format, Wide, $encoding => $body),
            (true, true) => $crate::log::ring::with_format!(@hints format, WideCosts, $encoding => $body),
        }
    }};
    (@hints $format:ident, $this:ident, $encoding:ident => $body:expr) => {
        if $format.hints {
            type $encoding = $this<{ $crate::log::ring::HINTS }>;
            $body
        } else {
            type $encoding = $this;
            $body
        }
    };
}
pub(crate) use with_format;

/// Rings of up to this capacity are not shrunk.
const SHRINK_ABOVE: usize = 32;

/// Whether to shrink is checked once in this many appends, or once per capacity if that is more: a log that empties and fills
/// in turns keeps its block.
const APPENDS_PER_CHECK: usize = 256;

const FORMAT_SHIFT: u32 = 53;
const LIFETIME_SHIFT: u32 = FORMAT_SHIFT + Format::BITS;
const _: () = assert!(
    Timestamp::MAX.as_micros() < 1 << FORMAT_SHIFT && LIFETIME_SHIFT + Lifetime::BITS <= u64::BITS
);

/// A ring's part of a slot, besides the pointer to its block.
#[derive(Clone)]
pub(crate) struct RingHeader {
    /// The newest entry's time, then the [`Format`], then the [`Lifetime`].
    newest: u64,
    /// The first entry's number.
    number: u32,
    len: u32,
}

impl RingHeader {
    #[inline(always)]
    fn new<E: Encoding>(first: u32, len: usize, newest: Timestamp, kept: Lifetime) -> Self {
        Self {
            newest: Self::pack::<E>(newest, kept),
            number: first,
            len: len as u32,
        }
    }

    #[inline(always)]
    fn pack<E: Encoding>(at: Timestamp, kept: Lifetime) -> u64 {
        let format = const { Format::of::<E>().to_bits() << FORMAT_SHIFT };
        at.as_micros() | format | kept.to_bits() << LIFETIME_SHIFT
    }

    pub(crate) fn format(&self) -> Format {
        Format::from_bits(self.newest >> FORMAT_SHIFT)
    }

    /// Whether the ring has this encoding.
    #[inline(always)]
    pub(crate) fn is<E: Encoding>(&self) -> bool {
        self.newest >> FORMAT_SHIFT & ((1 << Format::BITS) - 1)
            == const { Format::of::<E>().to_bits() }
    }

    pub(crate) fn lifetime(&self) -> Lifetime {
        Lifetime::from_bits(self.newest >> LIFETIME_SHIFT)
    }

    /// Returns the newest entry's time, or the epoch if there is none.
    #[inline(always)]
    pub(crate) fn newest(&self) -> Timestamp {
        Timestamp::from_low_bits(self.newest)
    }

    #[cold]
    fn should_shrink(capacity: usize, len: usize) -> bool {
        len < capacity / 4 && capacity > SHRINK_ABOVE
    }
}

impl Header for RingHeader {
    const GROWS: bool = true;

    #[inline(always)]
    fn first(&self) -> u32 {
        self.number
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    fn set_range(&mut self, first: u32, len: usize) {
        (self.number, self.len) = (first, len as u32);
    }

    #[inline(always)]
    fn set_newest<E: Encoding>(&mut self, at: Timestamp, kept: Lifetime) {
        self.newest = Self::pack::<E>(at, kept);
    }

    #[inline(always)]
    fn can_push<E: Encoding>(&self, op: &Op<'_>, len: usize, capacity: usize) -> bool {
        let next = self.number.wrapping_add(self.len) as usize;
        let is_check = next & (capacity.wrapping_sub(1) | (APPENDS_PER_CHECK - 1)) == 0;
        !(is_check && Self::should_shrink(capacity, len))
            && (E::HINTS > 0 || op.policy.limits().len() == 1)
    }
}

/// Longer logs become sparse, because a ring counts in 32 bits. In tests, the bound is low enough to reach.
pub(crate) const MAX_LEN: usize = if cfg!(test) { 1 << 17 } else { 1 << 31 };

/// The capacity of a new ring.
const SMALLEST: usize = 8;

#[derive(Clone)]
pub(crate) struct Ring {
    /// The entries, then the hints.
    words: Box<[u32]>,
    pub(crate) header: RingHeader,
}

impl Ring {
    /// Returns a ring of the entries from `from` on that can push the operation's entry. It starts from this format and takes a
    /// wider one if necessary.
    pub(crate) fn copy_of(
        log: &View<'_, impl Encoding>,
        from: usize,
        op: &Op<'_>,
        kept: Lifetime,
        mut format: Format,
    ) -> Self {
        format.costs |= op.cost != 1;
        format.hints |= op.policy.limits().len() > 1;
        let held = log.cost_from(from);
        format.wide |= !if format.costs {
            can_encode::<NarrowCosts>(op, held)
        } else {
            can_encode::<Narrow>(op, held)
        };
        with_format!(format, E => Self::copy::<E>(log, from, kept))
    }

    fn copy<E: Encoding<Header = RingHeader>>(
        log: &View<'_, impl Encoding>,
        from: usize,
        kept: Lifetime,
    ) -> Self {
        let len = log.len() - from;
        let capacity = (len + 2).next_power_of_two().max(SMALLEST);
        let newest = log.newest().unwrap_or(Timestamp::EPOCH);
        let words = vec![0; E::HINTS + capacity * E::WORDS].into_boxed_slice();
        let mut ring = Self {
            words,
            header: RingHeader::new::<E>(log.number(from), len, newest, kept),
        };
        let all = log.cost_from(from);
        let mut view = ring.view::<E>(None);
        for i in 0..len {
            view.write(i, log.at(from + i), all - log.cost_from(from + i + 1));
        }
        ring
    }

    /// Returns the entries in the encoding that the ring [has](RingHeader::is).
    #[inline(always)]
    pub(crate) fn view<'a, E: Encoding<Header = RingHeader>>(
        &'a mut self,
        oldest: Option<&'a mut Oldest>,
    ) -> View<'a, E> {
        debug_assert!(self.header.is::<E>());
        let newest = self.header.newest();
        View::new(&mut self.words, &mut self.header, newest, oldest)
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Policy, Window, policy};

    use super::*;
    use crate::evaluate::apply_any;
    use crate::log::inline::{Inline, NUMBERS};
    use crate::log::{LogForm, with_entries};

    const TWO: Policy = policy!("1000/1s, 1000/1m");

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    /// Appends an entry, and returns the ring's format, words and length, if the log is a ring.
    fn append(
        log: &mut LogForm,
        policy: &Policy,
        cost: u64,
        micros: u64,
    ) -> Option<(Format, usize, usize)> {
        let op = Op::acquire("", policy).with_cost(cost).at(at(micros));
        let facts = apply_any((log, None), &op, at(micros));
        assert_eq!((facts.admitted, log.newest()), (true, Some(at(micros))));
        assert_eq!(
            with_entries!(log, entries => (entries.at(entries.len() - 1), entries.cost_from(0)), _ => panic!("sparse")),
            (at(micros), facts.log.usage[0].used)
        );
        let LogForm::Ring(ring) = log else {
            return None;
        };
        Some((ring.header.format(), ring.words.len(), ring.header.len()))
    }

    #[test]
    fn a_ring_that_empties_shrinks() {
        let second = 1_000_000;
        let policy = policy!("1000000/1s");
        let mut log = LogForm::new(NUMBERS - 20_000);
        let mut append = |micros| append(&mut log, &policy, 1, micros);
        let mut last =
            |micros: &mut dyn Iterator<Item = u64>| micros.map(&mut append).last().unwrap();
        last(&mut (0..100_000));
        let since = second + 99_990;
        let full = last(&mut (since..=since));
        assert_eq!(full, Some((Format::default(), 1 << 17, 10)));
        let slowly = &mut (1..=3 << 17).map(|i| since + i * second / 11);
        assert_eq!(last(slowly), Some((Format::default(), 2 * SMALLEST, 11)));
    }

    #[test]
    fn a_new_ring_leaves_out_expired_entries_and_has_hints_for_several_limits() {
        let one = policy!("1000/1s");
        let mut log = LogForm::new(0);
        for micros in 0..100 {
            assert_eq!(append(&mut log, &one, 1, micros).is_some(), micros >= 4);
        }
        let costs = Format {
            costs: true,
            ..Format::default()
        };
        let hints = Format {
            hints: true,
            ..costs
        };
        for (policy, cost, micros, expected) in [
            (&one, 1, 100, (Format::default(), 128, 101)),
            (&one, 2, 2_000_000, (costs, 2 * SMALLEST, 1)),
            (&TWO, 1, 2_000_000, (hints, 2 * SMALLEST + HINTS, 2)),
        ] {
            assert_eq!(append(&mut log, policy, cost, micros), Some(expected));
        }
    }

    #[test]
    fn every_start_is_found_from_every_hint() {
        let policy = TWO;
        let op = Op::acquire("", &policy);
        let format = Format::default();
        let kept = Lifetime::default();
        let mut ring = Ring::copy_of(&Inline::new(9).view(), 0, &op, kept, format);
        // In the end the numbers overflow between the first and the last entry.
        ring.header.set_range(u32::MAX - 32, 0);
        // Behind the newest entry are dropped ones.
        for micros in 0..40 {
            let mut view = ring.view::<Narrow<HINTS>>(None);
            let dropped = usize::from(view.len() == 13);
            if view.can_push(&op, dropped) {
                view.push(dropped, &op, at(10 * micros));
            } else {
                ring = Ring::copy_of(&view, dropped, &op, kept, format);
                let mut view = ring.view::<Narrow<HINTS>>(None);
                view.push(0, &op, at(10 * micros));
            }
        }
        let mut view = ring.view::<Narrow<HINTS>>(None);
        let first = view.at(0).as_micros();
        for window in (5..200).step_by(5) {
            let window = Window::from_micros(window).unwrap();
            for now in [390, 391, 395, 400, 450, 600].map(at) {
                let counts = |i: &usize| window.counts(view.at(*i), now);
                let start = (0..view.len()).find(counts);
                let wanted = start.map_or((view.len(), now), |start| (start, view.at(start)));
                for hint in 0..=view.len() + 1 {
                    let what = format!("{window:?} at {now:?} from {hint}, since {first}");
                    view.remember_starts([(0, now), (hint, now)].into_iter());
                    assert_eq!(view.window_start(1, window, now), wanted, "{what}");
                }
            }
        }
    }
}
