//! Charges that a handler settles.

use std::fmt;
use std::sync::Arc;

use limiter_core::request::Background;
use limiter_core::{Permit, SharedStore};

/// A request's charges: an extension with a permit for each rule with [`settle_in_handler`](crate::Rule::settle_in_handler).
///
/// Dropping it keeps the charges. Clones refer to the same charges. Settle each one when its cost is known, or all of them at the
/// end of a stream with [`settle_on_drop`](Self::settle_on_drop).
#[derive(Clone, Debug)]
pub struct Charges {
    permits: Arc<[Permit<'static, SharedStore>]>,
    background: Option<Background>,
}

impl Charges {
    pub(crate) fn new(
        permits: impl Iterator<Item = Permit<'static, SharedStore>>,
        background: Option<Background>,
    ) -> Self {
        Self {
            permits: permits.collect(),
            background,
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
    /// [`Permit::settle_or_record`](limiter_core::Permit::settle_or_record). The settlements run where
    /// [refunds](crate::LayerBuilder::refund_in) do. If the store fails, the charge stays.
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
        let Charges {
            permits,
            background,
        } = &self.charges;
        let Some(background) = background else { return };
        for (i, cost) in permits.iter().map(&self.cost).enumerate() {
            let permits = Arc::clone(permits);
            background.run(Box::pin(async move {
                let _ = permits[i].settle_or_record(cost).await;
            }));
        }
    }
}

impl fmt::Debug for ChargesGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChargesGuard").field(&self.charges).finish()
    }
}
