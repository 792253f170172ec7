//! The inline log: at most four entries of cost 1, in the slot itself.

use std::num::NonZero;

use limiter_core::Timestamp;
use limiter_core::store::Op;

use super::lifetime::Lifetime;
use super::ring::Narrow;
use super::view::{Encoding, Header, View};

/// The low halves of the times. No window of an inline log is longer than a low half can express.
#[derive(Clone)]
pub(crate) struct Inline {
    header: InlineHeader,
    low: [u32; CAPACITY],
}

#[derive(Clone)]
pub(crate) struct InlineHeader {
    /// The first entry's number in 24 bits, the length in 7, and a 1: [`LogForm`](super::LogForm) keeps its tag in the unused value.
    state: NonZero<u32>,
    /// The high half of the newest time, below the [`Lifetime`].
    high: u32,
}

const CAPACITY: usize = 4;

/// Numbers of entries are below this.
pub(crate) const NUMBERS: u32 = 1 << 24;

const LIFETIME_SHIFT: u32 = 24;
const _: () = assert!(
    Timestamp::MAX.as_micros() >> 32 < 1 << LIFETIME_SHIFT
        && LIFETIME_SHIFT + Lifetime::BITS <= u32::BITS
);

impl Inline {
    /// Returns an empty log whose first entry will have this number of 24 bits.
    pub(crate) fn new(first: u32) -> Self {
        let mut header = InlineHeader {
            state: NonZero::<u32>::MIN,
            high: 0,
        };
        header.set_range(first, 0);
        Self {
            header,
            low: [0; CAPACITY],
        }
    }

    #[inline(always)]
    pub(crate) fn view(&mut self) -> View<'_, Narrow<0, InlineHeader>> {
        let newest = self.newest();
        View::new(&mut self.low, &mut self.header, newest, None)
    }

    pub(crate) fn len(&self) -> usize {
        self.header.len()
    }

    pub(crate) fn lifetime(&self) -> Lifetime {
        Lifetime::from_bits(u64::from(self.header.high >> LIFETIME_SHIFT))
    }

    #[inline(always)]
    pub(crate) fn newest(&self) -> Timestamp {
        let last = self
            .header
            .first()
            .wrapping_add(self.header.len() as u32)
            .wrapping_sub(1);
        let low = self.low[last as usize % CAPACITY];
        Timestamp::from_low_bits(
            u64::from(self.header.high & ((1 << LIFETIME_SHIFT) - 1)) << 32 | u64::from(low),
        )
    }
}

impl Header for InlineHeader {
    const GROWS: bool = false;

    #[inline(always)]
    fn first(&self) -> u32 {
        self.state.get() >> 8
    }

    #[inline(always)]
    fn len(&self) -> usize {
        usize::from(self.state.get() as u8 >> 1)
    }

    #[inline(always)]
    fn set_range(&mut self, first: u32, len: usize) {
        self.state = NonZero::<u32>::MIN | (len as u32) << 1 | first << 8;
    }

    #[inline(always)]
    fn set_newest<E: Encoding>(&mut self, at: Timestamp, kept: Lifetime) {
        self.high = (at.as_micros() >> 32) as u32 | (kept.to_bits() as u32) << LIFETIME_SHIFT;
    }

    #[inline(always)]
    fn can_push<E: Encoding>(&self, _: &Op<'_>, _: usize, capacity: usize) -> bool {
        (self.first() as usize + 2 * capacity) < NUMBERS as usize
    }
}
