//! How a compact log encodes an entry: 4 to 16 bytes.

use std::marker::PhantomData;

use limiter_core::MAX_LIMITS;
use limiter_core::store::Op;

use super::header::{Header, RingHeader};
use super::retention::retention_zeros;

/// The words of one entry. An entry that has a cost stores the total cost of all entries *before* it.
pub(crate) trait Encoding {
    type Entry: 'static;
    type Header: Header;
    const WORDS: usize = size_of::<Self::Entry>() / size_of::<u32>();
    /// Whether entries have costs. Otherwise each costs 1.
    const COSTS: bool;
    /// The largest age and the largest total cost.
    const RANGE: u64;
    /// How many words behind the entries are hints.
    const HINTS: usize;

    fn entries(words: &mut [u32]) -> &mut [Self::Entry];
    fn set_at(entry: &mut Self::Entry, at: u64);
    fn set_total_before(entry: &mut Self::Entry, total: u64);
    /// Returns how much older the entry is than the newest, whose time is given.
    fn age(entry: &Self::Entry, newest: u64) -> u64;
    /// Returns the total cost of all entries before this one, modulo [`RANGE`](Self::RANGE) + 1.
    fn total_before(entry: &Self::Entry) -> u64;
}

/// The low half of the time: 4 bytes, for windows of up to 71 minutes.
pub(crate) type Narrow<const HINTS: usize = 0, H = RingHeader> = Words<1, 1, HINTS, H>;
/// The low halves of the time and of the total: 8 bytes.
pub(crate) type NarrowCosts<const HINTS: usize = 0> = Words<2, 1, HINTS, RingHeader>;
/// The time: 8 bytes.
pub(crate) type Wide<const HINTS: usize = 0> = Words<2, 2, HINTS, RingHeader>;
/// The time and the total: 16 bytes.
pub(crate) type WideCosts<const HINTS: usize = 0> = Words<4, 2, HINTS, RingHeader>;

/// An entry of `WORDS` words. The first `TIME` hold the time, the rest, if any, the total.
pub(crate) struct Words<const WORDS: usize, const TIME: usize, const HINTS: usize, H>(PhantomData<H>);

/// Whether this encoding can express the operation's entry next to entries that cost `held`.
#[inline(always)]
pub(crate) fn can_encode<E: Encoding>(op: &Op<'_>, held: u64) -> bool {
    let cost = if E::COSTS { held.saturating_add(op.cost) <= E::RANGE } else { op.cost == 1 };
    cost && u32::from(retention_zeros(op)) >= E::RANGE.leading_zeros()
}

impl<const WORDS: usize, const TIME: usize, const HINTS: usize, H: Header> Encoding for Words<WORDS, TIME, HINTS, H> {
    type Entry = [u32; WORDS];
    type Header = H;
    const HINTS: usize = HINTS;
    const COSTS: bool = WORDS > TIME;
    const RANGE: u64 = if TIME == 1 { u32::MAX as u64 } else { u64::MAX };

    #[inline(always)]
    fn entries(words: &mut [u32]) -> &mut [Self::Entry] {
        words.as_chunks_mut().0
    }

    #[inline(always)]
    fn set_at(entry: &mut Self::Entry, at: u64) {
        write(&mut entry[..TIME], at);
    }

    #[inline(always)]
    fn set_total_before(entry: &mut Self::Entry, total: u64) {
        write(&mut entry[TIME..], total);
    }

    #[inline(always)]
    fn age(entry: &Self::Entry, newest: u64) -> u64 {
        newest.wrapping_sub(read(&entry[..TIME])) & Self::RANGE
    }

    #[inline(always)]
    fn total_before(entry: &Self::Entry) -> u64 {
        read(&entry[TIME..])
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
    words.iter().rev().fold(0, |number, word| number << 32 | u64::from(*word))
}

/// The words behind the entries of a ring with hints: the number of the entry at which each limit's window began the last time.
/// A log of one limit needs none, because its window begins at the first entry.
pub(crate) const HINTS: usize = MAX_LIMITS;

/// What a ring's block holds, in three bits of the ring's header.
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
        Self { wide: E::RANGE == u64::MAX, costs: E::COSTS, hints: E::HINTS > 0 }
    }

    #[inline(always)]
    pub(crate) const fn to_bits(self) -> u64 {
        self.costs as u64 | (self.wide as u64) << 1 | (self.hints as u64) << 2
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { costs: bits & 1 > 0, wide: bits & 2 > 0, hints: bits & 4 > 0 }
    }
}

/// Evaluates an expression with a format's [`Encoding`] as a type.
macro_rules! with_format {
    ($format:expr, $encoding:ident => $body:expr) => {{
        use $crate::log::encoding::{Format, Narrow, NarrowCosts, Wide, WideCosts};
        let format: Format = $format;
        match (format.wide, format.costs) {
            (false, false) => with_format!(@hints format, Narrow, $encoding => $body),
            (false, true) => with_format!(@hints format, NarrowCosts, $encoding => $body),
            (true, false) => with_format!(@hints format, Wide, $encoding => $body),
            (true, true) => with_format!(@hints format, WideCosts, $encoding => $body),
        }
    }};
    (@hints $format:ident, $this:ident, $encoding:ident => $body:expr) => {
        if $format.hints {
            type $encoding = $this<{ $crate::log::encoding::HINTS }>;
            $body
        } else {
            type $encoding = $this;
            $body
        }
    };
}
pub(crate) use with_format;
