//! The limits of a policy, in an array that a `const` can hold.

use std::ops::Deref;

use crate::limit::Limit;

/// The most limits that a policy may have.
pub const MAX_LIMITS: usize = 8;

/// One to [`MAX_LIMITS`] limits. Unlike a `Vec` or a box, a `const` can hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The elements from `len` on are [`Limit::UNUSED`].
    array: [Limit; MAX_LIMITS],
    len: u8,
}

impl Limits {
    /// The first `count` of `array`, 1 to [`MAX_LIMITS`].
    pub(crate) const fn new(array: [Limit; MAX_LIMITS], count: usize) -> Self {
        Self { array, len: count as u8 }
    }

    pub(crate) const fn count(&self) -> usize {
        self.len as usize
    }

    pub(crate) const fn first(&self) -> Limit {
        self.array[0]
    }

    pub(crate) const fn get(&self, i: usize) -> Limit {
        self.array[i]
    }

    /// The limits if there are exactly `N`.
    #[inline(always)]
    pub(crate) fn as_array<const N: usize>(&self) -> Option<&[Limit; N]> {
        if usize::from(self.len) == N { self.array.first_chunk() } else { None }
    }
}

impl Deref for Limits {
    type Target = [Limit];

    #[inline(always)]
    fn deref(&self) -> &[Limit] {
        self.array.get(..usize::from(self.len)).unwrap_or(&self.array)
    }
}
