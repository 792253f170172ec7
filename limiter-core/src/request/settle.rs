//! The builder for settlements and refunds.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::call::Call;
use crate::clock::BoxFuture;
use crate::error::Error;
use crate::facts::SettlementFacts;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::op::{At, Mode, Op};
use crate::policy::Policy;
use crate::settled::Settled;
use crate::settlement::{Receipt, Settlement};
use crate::store::{SyncStore, WindowStore};
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
    /// The record of the cost, which follows a settlement that comes too late.
    call: Call<'a, S, B>,
    receipt: Receipt,
    /// Whether the receipt is one. Otherwise it only names an entry that has none.
    is_valid: bool,
    or_record: bool,
    running: Option<BoxFuture<'a, Result<Settled, Error>>>,
}

impl<S> Limiter<S> {
    /// Replaces the cost of the entry that `receipt` names. The entry keeps its time.
    ///
    /// Any cost is accepted: if usage then exceeds a limit, acquires are denied until enough has expired. A cost of 0
    /// removes the entry. A cost above [`MAX_COST`](crate::MAX_COST) counts as [`MAX_COST`](crate::MAX_COST).
    ///
    /// A cost that exceeds a limit may displace older entries. If it is lowered afterwards, a window may admit more than its maximum
    /// by what was displaced.
    #[inline]
    pub fn settle<K: Key>(&self, key: K, receipt: Receipt, cost: u64) -> Settle<'_, S, K::Bytes> {
        Settle::new(Call::new(self, key.to_key(), Mode::Record), receipt, cost)
    }

    /// Removes the entry that `receipt` names, as if it had never been appended.
    #[inline]
    pub fn refund<K: Key>(&self, key: K, receipt: Receipt) -> Settle<'_, S, K::Bytes> {
        self.settle(key, receipt, 0)
    }
}

impl<'a, S, B> Settle<'a, S, B> {
    pub(super) fn new(call: Call<'a, S, B>, receipt: Receipt, cost: u64) -> Self {
        Self { call: Call { cost, ..call }, receipt, is_valid: true, or_record: false, running: None }
    }

    /// Sets the policy whose usage is reported. Default: the limiter's policy.
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.call.policy = Some(policy);
        self
    }

    /// Sets a caller-supplied time for the settlement. Default: that of the call that a permit is from; otherwise the store's clock.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.call.at = At::Given(at);
        self
    }

    /// Records the cost as a new entry if the old one has expired. See
    /// [`Permit::settle_or_record`](crate::Permit::settle_or_record).
    pub(super) fn or_record(mut self) -> Self {
        self.or_record = true;
        self
    }

    /// Changes nothing unless the receipt is one.
    pub(super) fn only_if(mut self, is_valid: bool) -> Self {
        self.is_valid = is_valid;
        self
    }

    /// Settles on a synchronous store, without a future.
    pub fn now(self) -> Settled
    where
        S: SyncStore,
        B: AsRef<[u8]>,
    {
        let (settlement, store) = (settlement(&self.call, self.receipt), &self.call.limiter.store);
        let facts = if self.is_valid {
            store.settle_now(&settlement)
        } else {
            SettlementFacts { applied: false, log: store.apply_now(&peek(&settlement)).log }
        };
        let settled = Settled::new(&settlement, facts);
        let record = self.or_record && came_too_late(&self.call, self.receipt, &settled);
        let recorded = record.then(|| self.call.decide_now().ok()).flatten();
        recorded.map_or(settled, |decision| Settled::recorded_as(decision.into_status()))
    }
}

fn settlement<'a, S>(call: &'a Call<'_, S, impl AsRef<[u8]>>, receipt: Receipt) -> Settlement<'a> {
    let op = call.op();
    Settlement { at: op.at, ..Settlement::new(op.log, op.policy, receipt, op.cost) }
}

/// Returns the operation that reports the same usage and changes nothing.
fn peek<'a>(settlement: &Settlement<'a>) -> Op<'a> {
    let Settlement { log, policy, at, .. } = *settlement;
    Op { log, at, ..Op::peek("", policy) }
}

/// Returns whether the entry counts no longer, and another one is to count in its place.
fn came_too_late<S>(call: &Call<'_, S, impl AsRef<[u8]>>, receipt: Receipt, settled: &Settled) -> bool {
    // Under a resolution, an entry counts for longer than its receipt is valid.
    let counts = call.op().retention().window.counts(receipt.at(), settled.status().at());
    !settled.applied() && !counts && call.cost > 0
}

impl<'a, S, B> Future for Settle<'a, S, B>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<Settled, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, receipt, is_valid, or_record, running } = &mut *self;
        let start = || -> BoxFuture<'a, _> {
            let (call, receipt, is_valid, or_record) = (call.clone(), *receipt, *is_valid, *or_record);
            Box::pin(async move {
                let (settlement, store) = (settlement(&call, receipt), &call.limiter.store);
                let facts = if is_valid {
                    store.settle(settlement).await?
                } else {
                    SettlementFacts { applied: false, log: store.apply(peek(&settlement)).await?.log }
                };
                facts.verify(&settlement)?;
                let settled = Settled::new(&settlement, facts);
                if or_record && came_too_late(&call, receipt, &settled) {
                    return Ok(Settled::recorded_as(call.decide().await?.into_status()));
                }
                Ok(settled)
            })
        };
        running.get_or_insert_with(start).as_mut().poll(context)
    }
}

impl<S, B> fmt::Debug for Settle<'_, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { limiter, cost, at, .. } = &self.call;
        let mut out = f.debug_struct("Settle");
        out.field("limiter", &limiter.name()).field("receipt", &self.receipt).field("cost", cost).field("at", at);
        out.finish_non_exhaustive()
    }
}
