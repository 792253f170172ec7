//! The builder for resets.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::clock::BoxFuture;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::store::{SyncStore, WindowStore};

/// A reset, which removes the log of a key.
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. Its output is whether there was a log.
///
/// # Errors
/// The future returns an error if the store fails. [`now`](Self::now) cannot fail.
///
/// # Cancel safety
/// See [`Limiter`].
#[must_use = "a reset does nothing until it is awaited, or `now` is called"]
pub struct Reset<'a, S, B> {
    limiter: &'a Limiter<S>,
    key: B,
    running: Option<BoxFuture<'a, Result<bool, Error>>>,
}

impl<S> Limiter<S> {
    /// Removes the whole log of a key. The output is `false` if there was none.
    #[inline]
    pub fn reset<K: Key>(&self, key: K) -> Reset<'_, S, K::Bytes> {
        Reset { limiter: self, key: key.to_key(), running: None }
    }
}

impl<'a, S, B> Reset<'a, S, B> {
    /// Resets on a synchronous store, without a future. Returns `false` if there was no log.
    pub fn now(self) -> bool
    where
        S: SyncStore,
        B: AsRef<[u8]>,
    {
        self.limiter.store.reset_now(self.limiter.log(&self.key))
    }
}

impl<'a, S, B> Future for Reset<'a, S, B>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<bool, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { limiter, key, running } = &mut *self;
        let start = || -> BoxFuture<'a, _> {
            let (limiter, key) = (*limiter, key.clone());
            Box::pin(async move { limiter.store.reset(limiter.log(&key)).await })
        };
        running.get_or_insert_with(start).as_mut().poll(context)
    }
}

impl<S, B> fmt::Debug for Reset<'_, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reset").field("limiter", &self.limiter.name()).finish_non_exhaustive()
    }
}
