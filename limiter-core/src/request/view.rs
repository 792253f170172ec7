//! A value that is borrowed until it has to move into a task.

use std::ops::Deref;
use std::sync::Arc;

pub(super) enum View<'a, T> {
    Borrowed(&'a T),
    Shared(Arc<T>),
}

impl<T: Clone> View<'_, T> {
    pub(super) fn to_shared(&self) -> View<'static, T> {
        View::Shared(match self {
            Self::Borrowed(value) => Arc::new(T::clone(value)),
            Self::Shared(value) => Arc::clone(value),
        })
    }
}

impl<T> Deref for View<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(value) => value,
            Self::Shared(value) => value,
        }
    }
}
