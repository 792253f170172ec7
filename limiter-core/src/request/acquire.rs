//! The builders for acquires.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::builder::{builder, costs};
use super::call::{Call, Running};
use super::permit::{Moment, PermitDecision, moment};
use super::wait;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::time::Timestamp;
use crate::store::op::{At, IdempotencyKey, Mode};
use crate::store::{SyncStore, WindowStore};

builder! {
    /// An acquire with its options: a builder that is also a future.
    ///
    /// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`Decision`](crate::Decision).
    ///
    /// # Errors
    /// The future and [`now`](Self::now) return:
    /// - [`InvalidCost`](crate::ErrorKind::InvalidCost) if the cost is 0;
    /// - [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) if it can never fit;
    /// - [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit) if a call with an idempotency key has a policy without an exact
    ///   limit.
    ///
    /// The future also returns the store's errors, and [`Inconsistent`](crate::ErrorKind::Inconsistent) if the store's facts
    /// contradict each other.
    ///
    /// # Cancel safety
    /// See [`Limiter`].
    Acquire, Decision
}
costs!(Acquire);

impl<S> Limiter<S> {
    /// Takes one unit, or [`cost`](Acquire::cost) units, if they fit.
    #[inline(always)]
    pub fn acquire<K: Key>(&self, key: K) -> Acquire<'_, S, K::Bytes> {
        Acquire::new(Call::new(self, key.to_key(), Mode::Acquire))
    }
}

impl<'a, S, B: AsRef<[u8]>> Acquire<'a, S, B> {
    /// Waits until the acquire fits, for at most `wait`.
    ///
    /// After a denial, the call waits exactly [`retry_after`](crate::Decision::retry_after) and tries again. If the acquire cannot
    /// fit in time, the denial is returned immediately. Concurrent waiters are served in no particular order. If the policy counts
    /// attempts, every try counts. A call with a [caller-supplied time](Self::at) is tried once.
    ///
    /// The future sleeps by the [clock](crate::Clock) in front of the store, otherwise on tokio's timers.
    ///
    /// # Errors
    /// As for the acquire. Without either, the future returns [`Configuration`](crate::ErrorKind::Configuration) at the first poll,
    /// even if the acquire would fit. A wait of zero and a call with a caller-supplied time need neither.
    ///
    /// # Cancel safety
    /// A future dropped while it sleeps has consumed no unit, unless the policy counts attempts.
    pub async fn within(self, wait: Duration) -> Result<Decision, Error>
    where
        S: WindowStore,
    {
        wait::sleeping(&self.call, wait, || ()).await
    }

    /// Returns a [`PermitDecision`] instead of a decision: an acquire that can be settled or refunded if it is admitted.
    pub fn permit(mut self) -> AcquirePermit<'a, S, B> {
        self.call.hints.wants_receipt = true;
        AcquirePermit {
            acquire: self,
            sent: None,
        }
    }
}

/// An acquire for a [`Permit`](crate::Permit).
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`PermitDecision`].
///
/// # Errors
/// As for an [`Acquire`], and [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit) if every limit has a
/// [resolution](crate::Limit::resolution).
///
/// # Cancel safety
/// See [`Limiter`].
#[must_use = "a request does nothing until it is awaited, or `now` is called"]
#[derive(Debug)]
pub struct AcquirePermit<'a, S, B> {
    acquire: Acquire<'a, S, B>,
    /// When it was sent, for [`Permit::hold`](crate::Permit).
    sent: Option<Moment>,
}

impl<'a, S, B: AsRef<[u8]>> AcquirePermit<'a, S, B> {
    /// Makes the call on a synchronous store, without a future.
    ///
    /// # Errors
    /// Those of the [type](Self), apart from the store's.
    pub fn now(self) -> Result<PermitDecision<'a, S>, Error>
    where
        S: SyncStore,
    {
        let Acquire { call, .. } = self.acquire;
        call.op().check_receipts()?;
        let sent = moment();
        PermitDecision::of(&call, call.now()?, sent)
    }

    /// Waits like [`Acquire::within`].
    ///
    /// # Errors
    /// Those of the [type](Self) and of [`Acquire::within`].
    ///
    /// # Cancel safety
    /// As for [`Acquire::within`].
    pub async fn within(self, wait: Duration) -> Result<PermitDecision<'a, S>, Error>
    where
        S: WindowStore,
    {
        let Acquire { call, .. } = &self.acquire;
        call.op().check_receipts()?;
        let mut sent = None;
        let decision = wait::sleeping(call, wait, || sent = moment()).await?;
        PermitDecision::of(call, decision, sent)
    }
}

impl<'a, S, B> Future for AcquirePermit<'a, S, B>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<PermitDecision<'a, S>, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.sent = self.sent.or_else(moment);
        let sent = self.sent;
        let Acquire { call, running } = &mut self.acquire;
        if let Err(error) = call.op().check_receipts() {
            return Poll::Ready(Err(error));
        }
        let decision = call.poll(running, context);
        decision.map(|decision| PermitDecision::of(call, decision?, sent))
    }
}
