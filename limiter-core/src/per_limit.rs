//! One value for each limit of a policy, without allocation.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// How many limits a policy may have.
pub const MAX_LIMITS: usize = 8;

/// One `T` for each limit of a policy, in the policy's order; a slice of 1 to [`MAX_LIMITS`] items.
///
/// A policy of one limit, the common case, writes and copies one item only.
#[derive(Clone, Copy)]
pub struct PerLimit<T>(Items<T>);

#[derive(Clone, Copy)]
enum Items<T> {
    One([T; 1]),
    Many { len: u8, items: [T; MAX_LIMITS] },
}

impl<T: Copy> PerLimit<T> {
    /// A sequence of one item.
    #[inline]
    #[must_use]
    pub const fn one(item: T) -> Self {
        Self(Items::One([item]))
    }

    /// `f` of each item of `limits`, in order.
    ///
    /// Takes the first [`MAX_LIMITS`] of `limits`; a [`Policy`](crate::Policy) never has more.
    #[inline]
    pub fn map<U: Copy>(limits: &PerLimit<U>, mut f: impl FnMut(usize, &U) -> T) -> Self {
        match &limits.0 {
            Items::One([limit]) => Self::one(f(0, limit)),
            Items::Many { len, items: from } => {
                let mut items = [f(0, &from[0]); MAX_LIMITS];
                for (i, limit) in from.iter().enumerate().take(usize::from(*len)).skip(1) {
                    items[i] = f(i, limit);
                }
                Self(Items::Many { len: *len, items })
            }
        }
    }

    /// The items of a slice, or `None` if there are none or more than [`MAX_LIMITS`].
    #[must_use]
    pub fn from_slice(slice: &[T]) -> Option<Self> {
        match slice {
            [] => None,
            [item] => Some(Self::one(*item)),
            [first, ..] if slice.len() <= MAX_LIMITS => {
                let mut items = [*first; MAX_LIMITS];
                items[..slice.len()].copy_from_slice(slice);
                Some(Self(Items::Many { len: slice.len() as u8, items }))
            }
            _ => None,
        }
    }
}

impl<T> Deref for PerLimit<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Items::One(item) => item,
            Items::Many { len, items } => &items[..usize::from(*len)],
        }
    }
}

impl<T> DerefMut for PerLimit<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Items::One(item) => item,
            Items::Many { len, items } => &mut items[..usize::from(*len)],
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
            let doubled = PerLimit::map(&items, |i, item| i + item);
            assert_eq!(*doubled, *slice.iter().map(|i| 2 * i).collect::<Vec<_>>());
        }
    }
}
