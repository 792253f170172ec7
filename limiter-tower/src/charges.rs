//! Charges that a handler settles.

use std::sync::Arc;

use limiter_core::{BoxFuture, Permit, SharedStore};

/// A request's charges: an extension with a permit for each rule with [`settle_in_handler`](crate::Rule::settle_in_handler).
///
/// Dropping it keeps the charges. Clones refer to the same charges. Settle each one when its cost is known. The cost of a streamed
/// response is known when the stream ends: let the body own a guard that settles. Then a stream that breaks off is charged for its
/// prompt and for what it has sent. Do not refund it, and do not count from 0: a client could break off each stream on purpose.
/// Without a reservation of the longest stream, take [instalments](Permit::acquire_more): the rule charges the first one.
///
/// ```
/// # use axum::{Extension, body::Body};
/// # use futures::{StreamExt, stream};
/// # use limiter_tower::Charges;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// async fn chat(Extension(charges): Extension<Charges>, prompt: String) -> Body {
///     let tokens = Arc::new(AtomicU64::new(prompt.split(' ').count() as u64));
///     let counted = tokens.clone();
///     let guard = charges.iter().next().cloned().map(|charge| {
///         scopeguard::guard(charge, move |charge| {
///             let cost = counted.load(Relaxed);
///             tokio::spawn(async move { charge.settle_or_record(cost).await });
///         })
///     });
///     Body::from_stream(stream::iter(["three ", "short ", "words"]).map(move |token| {
///         let _owned = &guard;
///         tokens.fetch_add(1, Relaxed);
///         Ok::<_, std::io::Error>(token)
///     }))
/// }
/// # let _ = chat;
/// ```
#[derive(Clone, Debug)]
pub struct Charges(Arc<[Permit<'static, SharedStore>]>);

impl Charges {
    pub(crate) fn new(permits: Vec<Permit<'static, SharedStore>>) -> Self {
        Self(permits.into())
    }

    /// Returns the charges in the order of the rules.
    pub fn iter(&self) -> impl Iterator<Item = &Permit<'static, SharedStore>> {
        self.0.iter()
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
