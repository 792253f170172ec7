//! The builder for settlements and refunds.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::clock::BoxFuture;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::log_key::LogKey;
use crate::op::At;
use crate::policy::Policy;
use crate::settlement::{Receipt, Settlement};
use crate::status::Settled;
use crate::store::settled;
use crate::store::{NowStore, WindowStore};
use crate::time::Timestamp;

/// A settlement or a refund: a builder that is also a future.
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. The output says whether it took effect, and reports the
/// usage afterwards. Both take a single round trip.
///
/// # Errors
/// The future returns an error if the store fails. [`now`](Self::now) cannot fail.
///
/// # Cancel safety
/// See [`Limiter`].
#[must_use = "a settlement does nothing until it is awaited, or `now` is called"]
pub struct Settle<'a, S, B> {
    call: SettleCall<'a, S, B>,
    running: Option<BoxFuture<'a, Result<Settled, Error>>>,
}

struct SettleCall<'a, S, B> {
    limiter: &'a Limiter<S>,
    key: B,
    policy: Option<&'a Policy>,
    receipt: Receipt,
    cost: u64,
    at: At,
}

impl<S, B: Clone> Clone for SettleCall<'_, S, B> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), ..*self }
    }
}

impl<S, B: AsRef<[u8]>> SettleCall<'_, S, B> {
    fn settlement(&self) -> Settlement<'_> {
        let log = LogKey { name: self.limiter.name(), key: self.key.as_ref() };
        let policy = self.policy.unwrap_or(self.limiter.policy());
        Settlement { at: self.at, ..Settlement::new(log, policy, self.receipt, self.cost) }
    }
}

impl<S> Limiter<S> {
    /// Replaces the cost of the entry that `receipt` names. The entry keeps its time.
    ///
    /// Any cost is accepted: if usage then exceeds a limit, acquires are denied until enough has expired. A cost of 0
    /// removes the entry. A cost above [`MAX_COST`](crate::MAX_COST) counts as [`MAX_COST`](crate::MAX_COST).
    #[inline]
    pub fn settle<K: Key>(&self, key: K, receipt: Receipt, cost: u64) -> Settle<'_, S, K::Bytes> {
        Settle::new(self, key.to_key(), receipt, cost)
    }

    /// Removes the entry that `receipt` names, as if it had never been appended.
    #[inline]
    pub fn refund<K: Key>(&self, key: K, receipt: Receipt) -> Settle<'_, S, K::Bytes> {
        Settle::new(self, key.to_key(), receipt, 0)
    }
}

impl<'a, S, B> Settle<'a, S, B> {
    pub(crate) fn new(limiter: &'a Limiter<S>, key: B, receipt: Receipt, cost: u64) -> Self {
        Self { call: SettleCall { limiter, key, policy: None, receipt, cost, at: At::StoreClock }, running: None }
    }

    /// Sets the policy whose usage is reported. Default: the limiter's policy.
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.call.policy = Some(policy);
        self
    }

    /// Sets a caller-supplied time for the settlement. Default: the store's clock.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.call.at = At::Given(at);
        self
    }

    /// Settles on a synchronous store, without a future.
    pub fn now(self) -> Settled
    where
        S: NowStore,
        B: AsRef<[u8]>,
    {
        let settlement = self.call.settlement();
        settled(&settlement, self.call.limiter.store.settle_now(&settlement))
    }
}

impl<'a, S, B> Future for Settle<'a, S, B>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<Settled, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, running } = &mut *self;
        let start = || -> BoxFuture<'a, _> {
            let call = call.clone();
            Box::pin(async move {
                let settlement = call.settlement();
                let facts = call.limiter.store.settle(settlement).await?;
                facts.verify(&settlement)?;
                Ok(settled(&settlement, facts))
            })
        };
        running.get_or_insert_with(start).as_mut().poll(context)
    }
}

impl<S, B> fmt::Debug for Settle<'_, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettleCall { limiter, receipt, cost, at, .. } = &self.call;
        let mut out = f.debug_struct("Settle");
        out.field("limiter", &limiter.name()).field("receipt", receipt).field("cost", cost).field("at", at);
        out.finish_non_exhaustive()
    }
}
