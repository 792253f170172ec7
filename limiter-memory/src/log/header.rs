//! A ring's part of a slot, and the formats of its block.

use limiter_core::store::Op;
use limiter_core::{MAX_LIMITS, Timestamp, internal};

use super::encoding::{Encoding, Header, Words};
use super::lifetime::Lifetime;

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

/// Evaluates an expression with a format's [`Encoding`] as a type.
macro_rules! with_format {
    ($format:expr, $encoding:ident => $body:expr) => {{
        use $crate::log::header::{Format, Narrow, NarrowCosts, Wide, WideCosts};
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
            type $encoding = $this<{ $crate::log::header::HINTS }>;
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
    pub(super) fn new<E: Encoding>(
        first: u32,
        len: usize,
        newest: Timestamp,
        kept: Lifetime,
    ) -> Self {
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
        internal::timestamp_from_low_bits(self.newest)
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

/// The number and time of the oldest entry that counted. While it counts, an operation does not read the front of the block,
/// which saves a cache miss. Kept in buckets, for narrow entries without costs and with one limit.
#[derive(Clone, Copy)]
pub(crate) struct Oldest {
    pub(super) number: u32,
    /// The low half of the time.
    pub(super) low: u32,
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
