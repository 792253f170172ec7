//! Charges that a handler settles.

use std::sync::Arc;

use limiter_core::{Permit, SharedStore};

/// What a request was charged, one permit for each rule with [`settle_in_handler`](crate::Rule::settle_in_handler): an extension
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
pub struct Charges(Arc<[Permit<'static, SharedStore>]>);

impl Charges {
    pub(crate) fn new(permits: impl IntoIterator<Item = Permit<'static, SharedStore>>) -> Self {
        Self(permits.into_iter().collect())
    }

    /// Returns the charges in the order of the rules.
    pub fn iter(&self) -> impl Iterator<Item = &Permit<'static, SharedStore>> {
        self.0.iter()
    }
}
