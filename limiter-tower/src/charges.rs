//! Charges that a handler settles.

use std::sync::Arc;
use std::task::{Context, Waker};

use limiter_core::{BoxFuture, JointDecision, Permit, SharedStore};

use crate::rejection::Rejection;

/// A request's charges: an extension with a permit for each rule with [`settle_in_handler`](crate::Rule::settle_in_handler).
///
/// Dropping it keeps the charges. Clones refer to the same charges. Settle each one when its cost is known, or let a
/// [meter](Self::meter) do so when the work ends.
///
/// Without a rule, make them [of](Self::of) a decision, or of permits: `Charges::from_iter([permit])`.
#[derive(Clone, Debug)]
pub struct Charges(Arc<[Permit<'static, SharedStore>]>);

impl FromIterator<Permit<'static, SharedStore>> for Charges {
    fn from_iter<I: IntoIterator<Item = Permit<'static, SharedStore>>>(permits: I) -> Self {
        Self(permits.into_iter().collect())
    }
}

impl Charges {
    /// Returns the charges of a handler's decision, for `?`. Make it [refundable](limiter_core::AllOf::refundable).
    ///
    /// # Errors
    /// [`Rejection::of`] the decision if it is a denial.
    #[allow(clippy::result_large_err, reason = "a handler returns it")]
    pub fn of(decision: JointDecision<'_, SharedStore>) -> Result<Self, Rejection> {
        if decision.is_denied() {
            return Err(Rejection::of(&decision));
        }
        let permits = decision.into_owned().into_result();
        Ok(permits.unwrap_or_default().into_iter().collect())
    }

    /// Returns the charges in the order of the rules, or of the decision's calls.
    pub fn iter(&self) -> impl Iterator<Item = &Permit<'static, SharedStore>> {
        self.0.iter()
    }
}

/// Settles a charge after its work, and again after an error that a retry mends.
pub(crate) async fn settle(charge: Permit<'static, SharedStore>, cost: u64) {
    #[cfg_attr(not(feature = "tokio"), allow(unused_mut))]
    let mut settled = charge.settle(cost).await;
    #[cfg(feature = "tokio")]
    while settled
        .as_ref()
        .is_err_and(limiter_core::Error::is_retryable)
        && tokio::runtime::Handle::try_current().is_ok()
    {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        settled = charge.settle(cost).await;
    }
    if settled.is_ok_and(|settled| !settled.applied()) {
        // Unlike a settlement, a record that is repeated counts again.
        let _ = charge.settle_or_record(cost).await;
    }
}

/// Runs a future for which nobody waits: as a task of the tokio runtime, if there is one, otherwise as far as it gets immediately.
pub(crate) fn detach(future: impl Future<Output = ()> + Send + 'static) {
    let mut running = run(future);
    let _ = running
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
}

/// Runs a future for at most ten seconds even if nobody waits for it: as a task of the tokio runtime, if there is one. If a store never
/// responds, such tasks would pile up.
pub(crate) fn run<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> BoxFuture<'static, Option<T>> {
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let timeout = std::time::Duration::from_secs(10);
        // Within the task: without timers, tokio panics.
        let task = runtime.spawn(async move { tokio::time::timeout(timeout, future).await });
        return Box::pin(async { task.await.ok()?.ok() });
    }
    Box::pin(async { Some(future.await) })
}
