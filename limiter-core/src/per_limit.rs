//! One value for each limit of a policy, without allocation.

use std::array;
use std::fmt;
use std::ops::Deref;
use std::slice;

/// How many limits a policy may have.
pub const MAX_LIMITS: usize = 8;

/// One `T` for each limit of a policy, in the policy's order; a slice of 1 to [`MAX_LIMITS`] items.
///
/// Held in place, in as few bytes as the number of limits allows: copying what is not there would be a good part of a
/// decision's cost.
#[derive(Clone, Copy)]
pub struct PerLimit<T>(Items<T>);

#[derive(Clone, Copy)]
enum Items<T> {
    One(T),
    Some { len: u8, items: [T; SOME] },
    Most { len: u8, items: [T; MAX_LIMITS] },
}

const SOME: usize = 4;

impl<T: Copy> PerLimit<T> {
    /// A sequence of one item.
    #[inline]
    #[must_use]
    pub const fn one(item: T) -> Self {
        Self(Items::One(item))
    }

    /// The first `len` of `items`; all of them if there are fewer, and at least one.
    #[inline(always)]
    #[must_use]
    pub fn from_array<const N: usize>(items: [T; N], len: usize) -> Self {
        const { assert!(N > 0) };
        let len = len.clamp(1, if N < MAX_LIMITS { N } else { MAX_LIMITS }) as u8;
        if N == 1 {
            Self(Items::One(items[0]))
        } else if N <= SOME {
            Self(Items::Some { len, items: resize(&items) })
        } else {
            Self(Items::Most { len, items: resize(&items) })
        }
    }

    /// The first `N` items and how many of them there are; what is beyond those is any of them.
    #[inline]
    #[must_use]
    pub fn to_array<const N: usize>(&self) -> ([T; N], usize) {
        match &self.0 {
            Items::One(item) | Items::Some { items: [item, ..], .. } | Items::Most { items: [item, ..], .. }
                if N == 1 =>
            {
                ([*item; N], 1)
            }
            Items::One(item) => ([*item; N], 1),
            Items::Some { len, items } => (resize(items), usize::from(*len).min(N)),
            Items::Most { len, items } => (resize(items), usize::from(*len).min(N)),
        }
    }

    /// The items of a slice, or `None` if there are none or more than [`MAX_LIMITS`].
    #[must_use]
    pub fn from_slice(slice: &[T]) -> Option<Self> {
        let last = slice.len().checked_sub(1)?;
        match slice.len() {
            1 => Some(Self::one(slice[0])),
            2..=SOME => Some(Self::from_array::<SOME>(array::from_fn(|i| slice[i.min(last)]), slice.len())),
            ..=MAX_LIMITS => Some(Self::from_array::<MAX_LIMITS>(array::from_fn(|i| slice[i.min(last)]), slice.len())),
            _ => None,
        }
    }
}

/// The first `N` items; the last one again and again where there are fewer.
#[inline(always)]
fn resize<T: Copy, const M: usize, const N: usize>(items: &[T; M]) -> [T; N] {
    array::from_fn(|i| items[if i < M { i } else { M - 1 }])
}

impl<T> Deref for PerLimit<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Items::One(item) => slice::from_ref(item),
            Items::Some { len, items } => &items[..usize::from(*len).min(SOME)],
            Items::Most { len, items } => &items[..usize::from(*len).min(MAX_LIMITS)],
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for PerLimit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq> PartialEq for PerLimit<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for PerLimit<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_one_to_eight_items() {
        assert_eq!(PerLimit::<u64>::from_slice(&[]), None);
        assert_eq!(PerLimit::from_slice(&[0; MAX_LIMITS + 1]), None);
        for len in 1..=MAX_LIMITS {
            let slice: Vec<usize> = (0..len).collect();
            let items = PerLimit::from_slice(&slice).unwrap();
            assert_eq!(*items, *slice);
        }
    }
}
