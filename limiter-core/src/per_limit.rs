//! One value for each limit of a policy, without allocation.

use std::ops::Deref;
use std::{array, fmt, iter};

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
    One([T; 1]),
    Two([T; 2]),
    Three([T; 3]),
    Four([T; 4]),
    More { len: u8, items: [T; MAX_LIMITS] },
}

impl<T: Copy> PerLimit<T> {
    /// A sequence of one item.
    #[inline]
    #[must_use]
    pub const fn one(item: T) -> Self {
        Self(Items::One([item]))
    }

    /// Whether there is but one item: quicker to tell than their number.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub const fn is_one(&self) -> bool {
        matches!(self.0, Items::One(_))
    }

    /// The first `len` of `items`; all of them if there are fewer, and at least one.
    #[inline(always)]
    #[must_use]
    pub fn from_array<const N: usize>(items: [T; N], len: usize) -> Self {
        const { assert!(N > 0) };
        Self(match len.clamp(1, if N < MAX_LIMITS { N } else { MAX_LIMITS }) {
            1 => Items::One(resize(&items)),
            2 => Items::Two(resize(&items)),
            3 => Items::Three(resize(&items)),
            4 => Items::Four(resize(&items)),
            len => Items::More { len: len as u8, items: resize(&items) },
        })
    }

    /// The items where there are `N`, which is up to 4; or the first one if `N` is 1.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn as_array<const N: usize>(&self) -> Option<&[T; N]> {
        let items: &[T] = match (N, &self.0) {
            (1, Items::One(items)) => items,
            // Wherever the first one is.
            (1, Items::Two([first, ..])) => array::from_ref(first),
            (1, Items::Three([first, ..])) => array::from_ref(first),
            (1, Items::Four([first, ..])) => array::from_ref(first),
            (1, Items::More { items: [first, ..], .. }) => array::from_ref(first),
            (2, Items::Two(items)) => items,
            (3, Items::Three(items)) => items,
            (4, Items::Four(items)) => items,
            _ => return None,
        };
        items.try_into().ok()
    }

    /// The first `N` items and how many of them there are; what is beyond those is any of them.
    #[inline(always)]
    #[must_use]
    pub fn to_array<const N: usize>(&self) -> ([T; N], usize) {
        let (items, len) = match &self.0 {
            Items::One(items) => (resize(items), 1),
            Items::Two(items) => (resize(items), 2),
            Items::Three(items) => (resize(items), 3),
            Items::Four(items) => (resize(items), 4),
            Items::More { len, items } => (resize(items), usize::from(*len)),
        };
        (items, len.min(N))
    }

    /// The items of a slice, or `None` if there are none or more than [`MAX_LIMITS`].
    #[must_use]
    pub fn from_slice(slice: &[T]) -> Option<Self> {
        let last = slice.len().checked_sub(1)?;
        let items = array::from_fn::<T, MAX_LIMITS, _>(|i| slice[i.min(last)]);
        (slice.len() <= MAX_LIMITS).then(|| Self::from_array(items, slice.len()))
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
            Items::One(items) => items,
            Items::Two(items) => items,
            Items::Three(items) => items,
            Items::Four(items) => items,
            Items::More { len, items } => &items[..usize::from(*len).min(MAX_LIMITS)],
        }
    }
}

/// Of an array of 1 to [`MAX_LIMITS`] items, which is checked when it is compiled.
impl<T: Copy, const N: usize> From<[T; N]> for PerLimit<T> {
    #[inline(always)]
    fn from(items: [T; N]) -> Self {
        const { assert!(1 <= N && N <= MAX_LIMITS) };
        // Not by `from_array`, which would write eight items in the place of one.
        Self(match N {
            1 => Items::One(resize(&items)),
            2 => Items::Two(resize(&items)),
            3 => Items::Three(resize(&items)),
            4 => Items::Four(resize(&items)),
            _ => Items::More { len: N as u8, items: resize(&items) },
        })
    }
}

impl<T: Copy> IntoIterator for PerLimit<T> {
    type Item = T;
    type IntoIter = iter::Take<array::IntoIter<T, MAX_LIMITS>>;

    fn into_iter(self) -> Self::IntoIter {
        let (items, len) = self.to_array();
        items.into_iter().take(len)
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
            assert_eq!((&*items, items.is_one()), (&*slice, len == 1));
            assert_eq!(items.into_iter().collect::<Vec<_>>(), slice);
            let (array, of_these) = items.to_array::<MAX_LIMITS>();
            assert_eq!((&array[..of_these], PerLimit::from_array(array, len)), (&*slice, items));
            let exact = [
                items.as_array::<1>() == Some(&[0]),
                items.as_array::<3>() == Some(&[0, 1, 2]),
                items.as_array::<5>().is_some(),
            ];
            assert_eq!(exact, [true, len == 3, false]);
        }
    }
}
