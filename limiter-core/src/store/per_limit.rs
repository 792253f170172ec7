//! A sequence with one value for each limit of a policy.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::policy::Policy;
use crate::policy::bounds::MAX_LIMITS;
use crate::policy::limit::Limit;

/// One `T` for each limit of a policy, in the policy's order.
///
/// Dereferences to a slice of 1 to [`MAX_LIMITS`] items. Up to four items are stored inline, which keeps decisions small.
/// More items are stored on the heap.
#[derive(Clone, PartialEq, Eq)]
pub struct PerLimit<T>(SmallVec<[T; 4]>);

impl<T: Copy> PerLimit<T> {
    /// Returns a sequence of `f` applied to each limit of a policy.
    #[inline]
    #[must_use]
    pub fn of(policy: &Policy, mut f: impl FnMut(&Limit) -> T) -> Self {
        let limits = policy.limits();
        Self::from_fn(limits.len(), |i| f(&limits[i]))
    }

    /// Returns a sequence of the items of `slice`. `None` if it has no items or more than [`MAX_LIMITS`].
    #[must_use]
    pub fn from_slice(slice: &[T]) -> Option<Self> {
        (1..=MAX_LIMITS)
            .contains(&slice.len())
            .then(|| Self(SmallVec::from_slice(slice)))
    }

    /// Returns a sequence of `f` applied to each item.
    pub fn map<U: Copy>(&self, mut f: impl FnMut(T) -> U) -> PerLimit<U> {
        PerLimit::from_fn(self.len(), |i| f(self[i]))
    }

    /// Returns a sequence of 1 to [`MAX_LIMITS`] items. Few are not collected, which takes longer than making an array.
    #[inline]
    pub(crate) fn from_fn(len: usize, mut f: impl FnMut(usize) -> T) -> Self {
        match len {
            1 => Self::from([f(0)]),
            2 => Self::from([f(0), f(1)]),
            3 => Self::from([f(0), f(1), f(2)]),
            _ => Self((0..len).map(f).collect()),
        }
    }
}

impl<T> Deref for PerLimit<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// Converts an array of 1 to [`MAX_LIMITS`] items. Any other length is a compile error.
impl<T: Copy, const N: usize> From<[T; N]> for PerLimit<T> {
    #[inline(always)]
    fn from(items: [T; N]) -> Self {
        const { assert!(0 < N && N <= MAX_LIMITS) };
        Self(SmallVec::from_slice(&items))
    }
}

impl<T: fmt::Debug> fmt::Debug for PerLimit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::time::Window;

    #[test]
    fn holds_one_to_eight_items() {
        assert_eq!(PerLimit::<u64>::from_slice(&[]), None);
        assert_eq!(PerLimit::from_slice(&[0; MAX_LIMITS + 1]), None);
        for len in 1..=MAX_LIMITS as u64 {
            let slice: Vec<u64> = (1..=len).collect();
            let items = PerLimit::from_slice(&slice).unwrap();
            assert_eq!(*items, *slice);
            let limit = |max: &u64| Limit::with_window(*max, Window::MIN).unwrap();
            let policy = Policy::new(slice.iter().map(limit)).unwrap();
            assert_eq!(PerLimit::of(&policy, Limit::max), items);
        }
        let five = PerLimit::from_slice(&[1, 2, 3, 4, 5]).unwrap();
        assert_eq!(PerLimit::from([1, 2, 3, 4, 5]), five);
        assert_eq!(*PerLimit::from([1, 2]), [1, 2]);
    }
}
