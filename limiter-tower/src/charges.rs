//! Charges that a handler settles.

use std::fmt;
use std::sync::Arc;

use limiter_core::{Error, KeyBuf, Limiter, Policy, Receipt, Settled};

/// What a request was charged, one entry for each rule with [`settle_in_handler`](crate::Rule::settle_in_handler): an extension
/// of the request.
///
/// Dropping it keeps the charges. Clones name the same charges.
///
/// ```
/// # use axum::Extension;
/// use limiter_tower::Charges;
///
/// async fn chat(Extension(charges): Extension<Charges>) -> String {
///     let answer = "three short words".to_owned();
///     for charge in charges.iter() {
///         // If the store fails, the charge stays.
///         let _ = charge.settle(answer.split(' ').count() as u64).await;
///     }
///     answer
/// }
/// # let _ = chat;
/// ```
#[derive(Clone, Debug)]
pub struct Charges(Arc<[Charged]>);

impl Charges {
    pub(crate) fn new(charges: impl IntoIterator<Item = Charged>) -> Self {
        Self(charges.into_iter().collect())
    }

    /// Returns the charges in the order of the rules.
    pub fn iter(&self) -> impl Iterator<Item = &Charged> {
        self.0.iter()
    }
}

/// A charge of one rule.
#[derive(Clone)]
pub struct Charged {
    pub(crate) limiter: Limiter,
    pub(crate) key: KeyBuf,
    pub(crate) receipt: Receipt,
    pub(crate) policy: Option<Arc<Policy>>,
}

impl Charged {
    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Replaces the cost by the actual one; 0 refunds it. It can be settled again, as the cost becomes known bit by bit.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub async fn settle(&self, cost: u64) -> Result<Settled, Error> {
        let settle = self.limiter.settle(&self.key, self.receipt, cost);
        match &self.policy {
            Some(policy) => settle.policy(policy).await,
            None => settle.await,
        }
    }
}

impl fmt::Debug for Charged {
    /// Prints no key: keys are often addresses or secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Charged");
        out.field("limiter", &self.limiter.name()).field("receipt", &self.receipt).finish_non_exhaustive()
    }
}
