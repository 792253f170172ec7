//! What a slot holds of a ring, beside the pointer to its block.

use limiter_core::{Timestamp, internal};

use crate::log::encoding::{Encoding, Format};
use crate::log::retention::Retention;

const FORMAT_SHIFT: u32 = 53;
const RETENTION_SHIFT: u32 = FORMAT_SHIFT + Format::BITS;
const _: () = assert!(Timestamp::MAX.as_micros() < 1 << FORMAT_SHIFT && RETENTION_SHIFT + Retention::BITS <= u64::BITS);

/// Which entries there are.
pub(crate) struct Header {
    /// The newest entry's time, then the [`Format`], then the [`Retention`].
    pub(super) newest: u64,
    /// The first entry's number.
    pub(super) number: u32,
    pub(super) len: u32,
}

impl Header {
    #[inline(always)]
    pub(super) fn pack<E: Encoding, const H: usize>(at: Timestamp, kept: Retention) -> u64 {
        let format = const { Format::of::<E, H>().to_bits() << FORMAT_SHIFT };
        at.as_micros() | format | kept.to_bits() << RETENTION_SHIFT
    }

    pub(crate) fn format(&self) -> Format {
        Format::from_bits(self.newest >> FORMAT_SHIFT)
    }

    /// Whether the ring has this encoding, and hints if `H` is not 0.
    #[inline(always)]
    pub(crate) fn is<E: Encoding, const H: usize>(&self) -> bool {
        self.newest >> FORMAT_SHIFT & ((1 << Format::BITS) - 1) == const { Format::of::<E, H>().to_bits() }
    }

    pub(crate) fn retention(&self) -> Retention {
        Retention::from_bits(self.newest >> RETENTION_SHIFT)
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        (self.len > 0).then(|| internal::timestamp_from_low_bits(self.newest))
    }

    #[inline(always)]
    pub(super) fn newest_micros(&self) -> u64 {
        internal::timestamp_from_low_bits(self.newest).as_micros()
    }

    #[inline(always)]
    pub(super) fn number(&self, i: usize) -> u32 {
        self.number.wrapping_add(i as u32)
    }
}

/// Which entry was the oldest that counted, and when it was appended. While it still counts, an operation need not read the
/// front of the block, which saves a cache miss. Kept in buckets, for narrow entries without costs under one limit.
#[derive(Clone, Copy)]
pub(crate) struct Oldest {
    pub(super) number: u32,
    /// The low half of the time.
    pub(super) low: u32,
}

impl Oldest {
    /// Names no entry of a log whose first entry has this number.
    pub(crate) fn none(first: u32) -> Self {
        Self { number: first.wrapping_sub(1), low: 0 }
    }
}
