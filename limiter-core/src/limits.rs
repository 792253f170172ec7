//! The limits of a policy, stored in an array so that a policy can be a `const`.

use std::ops::Deref;

use crate::limit::Limit;

/// The maximum number of limits in a policy.
pub const MAX_LIMITS: usize = 8;

/// One to [`MAX_LIMITS`] limits. Not a `Vec` or a box, which a `const` cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The elements from `len` on are [`Limit::UNUSED`].
    array: [Limit; MAX_LIMITS],
    len: u8,
}

/// The bit of `len` that is set if a limit has a resolution, so that no array of exact limits has such a length.
const RESOLUTION: u8 = 1 << 7;

impl Limits {
    /// Returns the first `count` elements of `array`. `count` is 1 to [`MAX_LIMITS`].
    pub(crate) const fn new(array: [Limit; MAX_LIMITS], count: usize) -> Self {
        let (mut len, mut i) = (count as u8, 0);
        while i < count {
            if array[i].resolution_micros() > 0 {
                len |= RESOLUTION;
            }
            i += 1;
        }
        Self { array, len }
    }

    #[inline(always)]
    pub(crate) const fn count(&self) -> usize {
        (self.len & !RESOLUTION) as usize
    }

    #[inline]
    pub(crate) const fn have_resolution(&self) -> bool {
        self.len & RESOLUTION > 0
    }

    pub(crate) const fn first(&self) -> Limit {
        self.array[0]
    }

    pub(crate) const fn get(&self, i: usize) -> Limit {
        self.array[i]
    }

    /// Returns the limits as an array. `None` unless there are exactly `N`, all of them exact.
    #[inline(always)]
    pub(crate) fn as_array<const N: usize>(&self) -> Option<&[Limit; N]> {
        if usize::from(self.len) == N { self.array.first_chunk() } else { None }
    }
}

impl Deref for Limits {
    type Target = [Limit];

    #[inline(always)]
    fn deref(&self) -> &[Limit] {
        self.array.get(..self.count()).unwrap_or(&self.array)
    }
}
