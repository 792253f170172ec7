//! Charges that a handler settles.

use std::fmt;
use std::sync::Arc;

use limiter_core::{BoxFuture, Permit, SharedStore};

/// A request's charges: an extension with a permit for each rule with [`settle_in_handler`](crate::Rule::settle_in_handler).
///
/// Dropping it keeps the charges. Clones refer to the same charges. Settle each one when its cost is known, or all of them at the
/// end of a stream with [`settle_on_drop`](Self::settle_on_drop).
#[derive(Clone, Debug)]
pub struct Charges {
    permits: Arc<[Permit<'static, SharedStore>]>,
}

impl Charges {
    pub(crate) fn new(permits: Vec<Permit<'static, SharedStore>>) -> Self {
        Self {
            permits: permits.into(),
        }
    }

    /// Returns the charges in the order of the rules.
    pub fn iter(&self) -> impl Iterator<Item = &Permit<'static, SharedStore>> {
        self.permits.iter()
    }

    /// Returns a guard that settles each charge when it is dropped, at the units that `cost` then returns for it.
    ///
    /// For a streamed response, whose cost is known only bit by bit: the body owns the guard, and drops it after the last part or
    /// when the client disconnects. A charge that has expired by then is recorded, as by
    /// [`Permit::settle_or_record`](limiter_core::Permit::settle_or_record). The settlements are tasks of
    /// the tokio runtime, which end after ten seconds. If the store fails, or without a runtime, the charge stays.
    ///
    /// ```
    /// # use axum::{Extension, body::Body};
    /// # use futures::{StreamExt, stream};
    /// # use limiter_tower::Charges;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    ///
    /// async fn chat(Extension(charges): Extension<Charges>) -> Body {
    ///     let tokens = Arc::new(AtomicU64::new(0));
    ///     let counted = tokens.clone();
    ///     let guard = charges.settle_on_drop(move |_| counted.load(Relaxed));
    ///     Body::from_stream(stream::iter(["three ", "short ", "words"]).map(move |token| {
    ///         let _owned = &guard;
    ///         tokens.fetch_add(1, Relaxed);
    ///         Ok::<_, std::io::Error>(token)
    ///     }))
    /// }
    /// # let _ = chat;
    /// ```
    pub fn settle_on_drop(
        self,
        cost: impl Fn(&Permit<'static, SharedStore>) -> u64 + Send + Sync + 'static,
    ) -> ChargesGuard {
        ChargesGuard {
            charges: self,
            cost: Box::new(cost),
        }
    }
}

/// Settles a request's charges on drop. See [`Charges::settle_on_drop`].
#[must_use = "dropping it settles the charges immediately"]
pub struct ChargesGuard {
    charges: Charges,
    cost: CostHook,
}

type CostHook = Box<dyn Fn(&Permit<'static, SharedStore>) -> u64 + Send + Sync>;

impl Drop for ChargesGuard {
    fn drop(&mut self) {
        let permits = &self.charges.permits;
        for (i, cost) in permits.iter().map(&self.cost).enumerate() {
            let permits = Arc::clone(permits);
            drop(run(async move { permits[i].settle_or_record(cost).await }));
        }
    }
}

/// Runs a future for at most ten seconds even if nobody waits for it: as a task of the tokio runtime, if there is one. If a store never
/// responds, such tasks would pile up.
pub(crate) fn run<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> BoxFuture<'static, Option<T>> {
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let timeout = std::time::Duration::from_secs(10);
        let task = runtime.spawn(tokio::time::timeout(timeout, future));
        return Box::pin(async { task.await.ok()?.ok() });
    }
    Box::pin(async { Some(future.await) })
}

/// Awaits a future, on tokio's runtime for at most this long.
pub(crate) async fn within(timeout: std::time::Duration, future: impl Future<Output = ()>) {
    #[cfg(feature = "tokio")]
    if tokio::runtime::Handle::try_current().is_ok() {
        let _ = tokio::time::timeout(timeout, future).await;
        return;
    }
    let _ = timeout;
    future.await;
}

impl fmt::Debug for ChargesGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChargesGuard").field(&self.charges).finish()
    }
}
