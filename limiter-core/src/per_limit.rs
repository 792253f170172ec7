//! A sequence with one value for each limit of a policy.

use std::ops::Deref;
use std::{array, fmt, slice};

use crate::limit::Limit;
use crate::limits::MAX_LIMITS;
use crate::policy::Policy;

/// One `T` for each limit of a policy, in the policy's order.
///
/// Dereferences to a slice of 1 to [`MAX_LIMITS`] items. Up to four items are stored inline, which keeps decisions small.
/// More items are stored on the heap.
#[derive(Clone)]
pub struct PerLimit<T>(Items<T>);

#[derive(Clone)]
enum Items<T> {
    One([T; 1]),
    Two([T; 2]),
    Three([T; 3]),
    Four([T; 4]),
    More(Box<[T]>),
}

impl<T: Copy> PerLimit<T> {
    /// Returns a sequence of one item.
    #[inline]
    #[must_use]
    pub const fn one(item: T) -> Self {
        Self(Items::One([item]))
    }

    /// Returns a sequence of `f` applied to each limit of a policy.
    #[inline]
    #[must_use]
    pub fn of(policy: &Policy, mut f: impl FnMut(&Limit) -> T) -> Self {
        Self(match policy.limits() {
            [a] => Items::One([f(a)]),
            [a, b] => Items::Two([f(a), f(b)]),
            [a, b, c] => Items::Three([f(a), f(b), f(c)]),
            [a, b, c, d] => Items::Four([f(a), f(b), f(c), f(d)]),
            limits => Items::More(limits.iter().map(f).collect()),
        })
    }

    /// Returns a sequence of the items of `slice`. `None` if it has no items or more than [`MAX_LIMITS`].
    #[must_use]
    pub fn from_slice(slice: &[T]) -> Option<Self> {
        Some(Self(match *slice {
            [] => return None,
            [a] => Items::One([a]),
            [a, b] => Items::Two([a, b]),
            [a, b, c] => Items::Three([a, b, c]),
            [a, b, c, d] => Items::Four([a, b, c, d]),
            _ if slice.len() <= MAX_LIMITS => Items::More(slice.into()),
            _ => return None,
        }))
    }

    /// Returns a sequence of `f` applied to each item.
    #[must_use]
    pub fn map<U: Copy>(&self, f: impl FnMut(T) -> U) -> PerLimit<U> {
        PerLimit(match &self.0 {
            Items::One(items) => Items::One(items.map(f)),
            Items::Two(items) => Items::Two(items.map(f)),
            Items::Three(items) => Items::Three(items.map(f)),
            Items::Four(items) => Items::Four(items.map(f)),
            Items::More(items) => Items::More(items.iter().copied().map(f).collect()),
        })
    }
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
            Items::More(items) => items,
        }
    }
}

/// Converts an array of 1 to [`MAX_LIMITS`] items. Any other length is a compile error.
impl<T: Copy, const N: usize> From<[T; N]> for PerLimit<T> {
    #[inline(always)]
    fn from(items: [T; N]) -> Self {
        const { assert!(0 < N && N <= MAX_LIMITS) };
        // Not `from_slice`: a match on the constant `N` lets the compiler keep a single item in registers.
        Self(match N {
            1 => Items::One([items[0]]),
            2 => Items::Two(array::from_fn(|i| items[i])),
            3 => Items::Three(array::from_fn(|i| items[i])),
            4 => Items::Four(array::from_fn(|i| items[i])),
            _ => Items::More(items.into()),
        })
    }
}

impl<'a, T> IntoIterator for &'a PerLimit<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
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
            assert_eq!(*items.map(|i| i * 2), *slice.iter().map(|i| i * 2).collect::<Vec<_>>());
            let policy = Policy::new(slice.iter().map(|i| Limit::per_second(*i as u64 + 1).unwrap())).unwrap();
            assert_eq!(PerLimit::of(&policy, |limit| limit.max() as usize - 1), items);
        }
        assert_eq!(PerLimit::from([1, 2, 3, 4, 5]), PerLimit::from_slice(&[1, 2, 3, 4, 5]).unwrap());
        assert_eq!(*PerLimit::from([1, 2]), [1, 2]);
    }
}
