//! The builder for settlements and refunds.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::call::Call;
use crate::clock::BoxFuture;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::op::{At, Mode};
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
    or_record: bool,
}

impl<S, B: Clone> Clone for SettleCall<'_, S, B> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), ..*self }
    }
}

impl<S, B: AsRef<[u8]>> SettleCall<'_, S, B> {
    fn settlement(&self) -> Settlement<'_> {
        let policy = self.policy.unwrap_or(self.limiter.policy());
        let settlement = Settlement::new(self.limiter.log(&self.key), policy, self.receipt, self.cost);
        Settlement { at: self.at, ..settlement }
    }

    /// Returns the record to make after a settlement, if its entry counts no longer and the cost is to be counted all the same.
    fn record(&self, settlement: &Settlement<'_>, settled: &Settled) -> Option<Call<'_, S, &[u8]>>
    where
        S: WindowStore,
    {
        let call = Call::new(self.limiter, self.key.as_ref(), Mode::Record);
        let call = Call { policy: self.policy, cost: settlement.cost, at: self.at, ..call };
        // Under a resolution, an entry counts for longer than its receipt is valid.
        let counts = call.op().retention().window.counts(self.receipt.at(), settled.status().at());
        (self.or_record && !settled.applied() && !counts && settlement.cost > 0).then_some(call)
    }
}

impl<S> Limiter<S> {
    /// Replaces the cost of the entry that `receipt` names. The entry keeps its time.
    ///
    /// Any cost is accepted: if usage then exceeds a limit, acquires are denied until enough has expired. A cost of 0
    /// removes the entry. A cost above [`MAX_COST`](crate::MAX_COST) counts as [`MAX_COST`](crate::MAX_COST).
    #[inline]
    pub fn settle<K: Key>(&self, key: K, receipt: Receipt, cost: u64) -> Settle<'_, S, K::Bytes> {
        Settle::new(self, key.to_key(), None, receipt, cost)
    }

    /// Removes the entry that `receipt` names, as if it had never been appended.
    #[inline]
    pub fn refund<K: Key>(&self, key: K, receipt: Receipt) -> Settle<'_, S, K::Bytes> {
        Settle::new(self, key.to_key(), None, receipt, 0)
    }
}

impl<'a, S, B> Settle<'a, S, B> {
    pub(super) fn new(
        limiter: &'a Limiter<S>,
        key: B,
        policy: Option<&'a Policy>,
        receipt: Receipt,
        cost: u64,
    ) -> Self {
        let call = SettleCall { limiter, key, policy, receipt, cost, at: At::StoreClock, or_record: false };
        Self { call, running: None }
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

    /// Records the cost as a new entry if the old one has expired. See
    /// [`Permit::settle_or_record`](crate::Permit::settle_or_record).
    pub(super) fn or_record(mut self) -> Self {
        self.call.or_record = true;
        self
    }

    /// Settles on a synchronous store, without a future.
    pub fn now(self) -> Settled
    where
        S: NowStore,
        B: AsRef<[u8]>,
    {
        let settlement = self.call.settlement();
        let settled = settled(&settlement, self.call.limiter.store.settle_now(&settlement));
        let recorded = self.call.record(&settlement, &settled).and_then(|record| record.decide_now().ok());
        recorded.map_or(settled, Settled::recorded_by)
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
                let settled = settled(&settlement, facts);
                match call.record(&settlement, &settled) {
                    Some(record) => Ok(Settled::recorded_by(record.decide().await?)),
                    None => Ok(settled),
                }
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
