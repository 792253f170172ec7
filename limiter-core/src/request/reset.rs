//! The builder for resets.

use std::fmt;

use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::store::clock::BoxFuture;
use crate::store::{SyncStore, WindowStore};

/// A reset, which removes a key's log. `.await` it, or call [`now`](Self::now) on a synchronous store.
///
/// The output is `true` if there was a log.
///
/// # Errors
/// If the store fails.
///
/// # Cancel safety
/// See [`Limiter`].
#[must_use = "a reset does nothing until it is awaited, or `now` is called"]
pub struct Reset<'a, S, B> {
    limiter: &'a Limiter<S>,
    key: B,
}

impl<S> Limiter<S> {
    /// Removes a key's whole log. The output is `false` if there was none.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # use limiter_testkit::ReferenceStore as MemoryStore;
    /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
    /// search.acquire("customer 7").now()?;
    /// assert!(search.reset("customer 7").now()?);
    /// assert!(!search.reset("customer 7").now()?);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline]
    pub fn reset<K: Key>(&self, key: K) -> Reset<'_, S, K::Bytes> {
        Reset {
            limiter: self,
            key: key.to_key(),
        }
    }
}

impl<S, B: AsRef<[u8]>> Reset<'_, S, B> {
    /// Resets on a synchronous store, without a future. Never fails; all verbs return a `Result`.
    pub fn now(self) -> Result<bool, Error>
    where
        S: SyncStore,
    {
        Ok(self.limiter.store.reset_now(self.limiter.log(&self.key)))
    }
}

impl<'a, S: WindowStore, B: AsRef<[u8]> + Send + Sync + 'a> IntoFuture for Reset<'a, S, B> {
    type Output = Result<bool, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.limiter.store.reset(self.limiter.log(&self.key)).await })
    }
}

impl<S, B> fmt::Debug for Reset<'_, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reset")
            .field("limiter", &self.limiter.name())
            .finish_non_exhaustive()
    }
}
