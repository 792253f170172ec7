//! The builder for settlements, refunds and renewals.

use super::call::Call;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::time::Timestamp;
use crate::settled::Settled;
use crate::store::clock::BoxFuture;
use crate::store::op::{At, EntryId, Mode};
use crate::store::settlement::{Change, Receipt, Settlement};
use crate::store::{SyncStore, WindowStore};

/// A settlement, a refund or a renewal with its options.
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. The output reports whether it took effect, and the
/// usage afterwards. Both take a single round trip. For cancel safety, see [`Limiter`].
///
/// # Errors
/// If the store fails, which a synchronous store cannot. A renewal also fails with
/// [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit) if every limit has a [resolution](crate::Limit::resolution).
#[derive(Debug)]
#[must_use = "a settlement does nothing until it is awaited, or `now` is called"]
pub struct Settle<'a, S, B> {
    /// The record of the cost, which follows a settlement that comes too late.
    pub(super) call: Call<'a, S, B>,
    pub(super) receipt: Receipt,
    /// Whether the cost is recorded as a new entry if the old one has expired.
    pub(super) or_record: bool,
    /// Whether it renews the entry instead. The call's id is the entry's.
    pub(super) renews: bool,
}

impl<S> Limiter<S> {
    /// Replaces the cost of the entry that `receipt` names. The entry keeps its time.
    ///
    /// Any cost is accepted: if usage then exceeds a limit, acquires are denied until enough has expired. A cost of 0
    /// removes the entry. A cost above [`MAX_COST`](crate::MAX_COST) counts as [`MAX_COST`](crate::MAX_COST).
    ///
    /// A log holds [`MAX_COST`](crate::MAX_COST) at most: a cost that would exceed it with the other entries is reduced.
    ///
    /// After a cost that exceeds a limit, a record or a denied attempt may displace older entries, as before a [refund](Self::refund).
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # use limiter_testkit::ReferenceStore as MemoryStore;
    /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
    /// let receipt = search.acquire("customer 7").cost(5).now()?.receipt().unwrap();
    /// search.settle("customer 7", receipt, 2).now()?;
    /// assert_eq!(search.status("customer 7").now()?.used(), 2);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline]
    pub fn settle<K: Key>(&self, key: K, receipt: Receipt, cost: u64) -> Settle<'_, S, K::Bytes> {
        Settle::new(Call::new(self, key.to_key(), Mode::Record), receipt, cost)
    }

    /// Removes the entry that `receipt` names, as if it had never been appended.
    ///
    /// A refund also frees what a record above the maximum, or a denied attempt, has displaced since the entry was appended. Where a
    /// limiter makes refunds and such records, a window may admit more than its maximum by that cost.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # use limiter_testkit::ReferenceStore as MemoryStore;
    /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
    /// let receipt = search.acquire("customer 7").now()?.receipt().unwrap();
    /// assert!(search.refund("customer 7", receipt).now()?.applied());
    /// assert!(!search.refund("customer 7", receipt).now()?.applied());
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline]
    pub fn refund<K: Key>(&self, key: K, receipt: Receipt) -> Settle<'_, S, K::Bytes> {
        self.settle(key, receipt, 0)
    }

    /// Moves the entry that `receipt` names to now, with its cost: it then counts for another window.
    ///
    /// It checks no limit, because the entry counts already. [`Settled::receipt`] returns the new receipt; the old one names nothing any
    /// more. If the log no longer holds the entry, nothing changes, and [`Settled::applied`] returns `false`. If the acquire had its own
    /// policy, [set](Settle::policy) it.
    ///
    /// [`Permit::hold`](crate::Permit::hold) renews a permit while work runs.
    #[inline]
    pub fn renew<K: Key>(&self, key: K, receipt: Receipt) -> Settle<'_, S, K::Bytes> {
        Settle::new(Call::new(self, key.to_key(), Mode::Record), receipt, 1).renewing(None)
    }
}

impl<'a, S, B> Settle<'a, S, B> {
    pub(super) fn new(call: Call<'a, S, B>, receipt: Receipt, cost: u64) -> Self {
        Self {
            call: Call { cost, ..call },
            receipt,
            or_record: false,
            renews: false,
        }
    }

    /// Returns a renewal instead. `id` is the entry's.
    pub(super) fn renewing(mut self, id: Option<EntryId>) -> Self {
        (self.renews, self.call.id) = (true, id);
        self
    }

    /// Sets the idempotency key of the call that the receipt is from, so that a renewal can be repeated while the receipt is valid: it then
    /// also finds the entry where an earlier attempt has moved it. Without it, a renewal whose reply was lost reports that the entry is gone. Default: none. A settlement ignores it.
    pub fn idempotency_key(mut self, key: impl Into<EntryId>) -> Self {
        self.call.id = Some(key.into()).filter(|_| self.renews);
        self
    }

    /// Sets the policy whose usage is reported. Default: the limiter's policy.
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.call.policy = Some(policy);
        self
    }

    /// Sets a caller-supplied time for the settlement. Default: the time that the acquire was given, or else the store's clock.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.call.at = At::Given(at);
        self
    }
}

impl<S, B: AsRef<[u8]>> Settle<'_, S, B> {
    /// Settles on a synchronous store, without a future. Returns the errors of the [type](Self), apart from the store's.
    pub fn now(self) -> Result<Settled, Error>
    where
        S: SyncStore,
    {
        let settlement = self.settlement()?;
        let store = &self.call.limiter.store;
        let settled = Settled::new(&settlement, store.settle_now(&settlement));
        if self.came_too_late(&settled) {
            store.decide_now(self.call.op()).map(Settled::recorded_as)
        } else {
            Ok(settled)
        }
    }

    async fn settled(self) -> Result<Settled, Error>
    where
        S: WindowStore,
    {
        let settlement = self.settlement()?;
        let facts = self.call.limiter.store.settle(settlement).await?;
        facts.verify(&settlement)?;
        let settled = Settled::new(&settlement, facts);
        if self.came_too_late(&settled) {
            self.call.decide().await.map(Settled::recorded_as)
        } else {
            Ok(settled)
        }
    }

    fn settlement(&self) -> Result<Settlement<'_>, Error> {
        let op = self.call.op();
        let mut settlement = Settlement::new(op.log, op.policy, self.receipt, op.cost);
        (settlement.at, settlement.limiter_policy) = (op.at, op.limiter_policy);
        if self.renews {
            op.check_receipts()?;
            settlement.change = Change::Renew { id: op.id };
        }
        Ok(settlement)
    }

    /// Returns `true` if the entry no longer counts, and a new entry should replace it.
    fn came_too_late(&self, settled: &Settled) -> bool {
        // With a resolution, an entry counts for longer than its receipt is valid.
        let counts = self
            .call
            .op()
            .retention()
            .window
            .counts(self.receipt.at(), settled.status().at());
        self.or_record && !settled.applied() && !counts && self.call.cost > 0
    }
}

impl<'a, S: WindowStore, B: AsRef<[u8]> + Send + Sync + 'a> IntoFuture for Settle<'a, S, B> {
    type Output = Result<Settled, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.settled())
    }
}
