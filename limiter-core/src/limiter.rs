//! The front end.

use std::sync::Arc;

use crate::{At, Clock, Decision, DynWindowStore, Error, Mode, Op, Policy, Receipt, Settlement, WindowStore};

/// A store, a default policy, and who tells the time.
///
/// Cheap to clone if the store is (`Arc<Store>`); all methods take `&self`. A policy of the call's own goes with
/// [`run`](Self::run): `limiter.run(Op::acquire("key", &gold).cost(3))`.
///
/// # Cancel safety
/// Dropping a future of an in-memory store before it is polled does nothing; it has no later point to be dropped at.
/// Over a network, a dropped future may or may not have had its effect on the store, never a part of it.
#[derive(Clone, Debug)]
pub struct Limiter<S = Arc<dyn DynWindowStore>> {
    pub(crate) store: S,
    policy: Arc<Policy>,
    clock: Option<Arc<dyn Clock>>,
}

impl<S> Limiter<S> {
    /// A limiter over `store` with `policy` for all operations that bring none, at the store's own time.
    #[must_use]
    pub fn new(store: S, policy: impl Into<Policy>) -> Self {
        Self { store, policy: Arc::new(policy.into()), clock: None }
    }

    /// The same limiter, for which `clock` tells the time of all operations that bring none.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The default policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    #[inline]
    pub(crate) fn at(&self, at: At) -> At {
        match (&self.clock, at) {
            (Some(clock), At::StoreClock) => At::Given(clock.now()),
            _ => at,
        }
    }

    #[inline]
    pub(crate) fn op<'a>(&'a self, mode: Mode, key: &'a (impl AsRef<[u8]> + ?Sized), cost: u64) -> Op<'a> {
        Op::new(mode, key, &self.policy).cost(cost)
    }
}

impl<S: WindowStore> Limiter<S> {
    /// Runs one operation with a policy, cost, id or time of its own.
    ///
    /// # Errors
    /// [`InvalidCost`](crate::ErrorKind::InvalidCost) for a cost of 0,
    /// [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) for an acquire or peek that could never fit, and
    /// whatever keeps the store from answering.
    ///
    /// A clock of the limiter's own is read at the call; the store reads its own when the future is polled.
    #[inline]
    pub fn run<'a>(&'a self, mut op: Op<'a>) -> impl Future<Output = Result<Decision, Error>> + Send + 'a {
        op.at = self.at(op.at);
        self.store.decide(op)
    }

    /// Takes one unit if it fits. Errors as [`run`](Self::run).
    #[inline]
    pub fn acquire<'a, K>(&'a self, key: &'a K) -> impl Future<Output = Result<Decision, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units if they fit, all or nothing. Errors as [`run`](Self::run).
    #[inline]
    pub fn acquire_n<'a, K>(
        &'a self,
        key: &'a K,
        cost: u64,
    ) -> impl Future<Output = Result<Decision, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.run(self.op(Mode::Acquire, key, cost))
    }

    /// Looks whether one unit would fit, and consumes nothing. Errors as [`run`](Self::run).
    pub fn peek<'a, K>(&'a self, key: &'a K) -> impl Future<Output = Result<Decision, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.run(self.op(Mode::Peek, key, 1))
    }

    /// Looks whether `cost` units would fit, and consumes nothing. Errors as [`run`](Self::run).
    pub fn peek_n<'a, K>(&'a self, key: &'a K, cost: u64) -> impl Future<Output = Result<Decision, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.run(self.op(Mode::Peek, key, cost))
    }

    /// Counts `cost` units, whether they fit or not: metering. Errors as [`run`](Self::run), but never for its size.
    pub fn record<'a, K>(&'a self, key: &'a K, cost: u64) -> impl Future<Output = Result<Decision, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.run(self.op(Mode::Record, key, cost))
    }

    /// Removes the entry that `receipt` names, as if it had never been; `false`, without a change, if it was refunded
    /// before or has left the log.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub fn refund<'a, K>(
        &'a self,
        key: &'a K,
        receipt: Receipt,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.settle(key, receipt, 0)
    }

    /// Replaces the cost of the entry that `receipt` names by the actual one, at the time at which it counts already;
    /// `false`, without a change, if it was refunded or has left the log. A cost of 0 refunds it. It never fails for
    /// its size: usage above a limit then denies until enough has left.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub fn settle<'a, K>(
        &'a self,
        key: &'a K,
        receipt: Receipt,
        cost: u64,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        let mut settlement = Settlement::new(key, receipt, cost);
        settlement.at = self.at(settlement.at);
        self.store.settle(settlement)
    }

    /// Removes the whole log of a key; `false` if there was none.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    pub fn reset<'a, K>(&'a self, key: &'a K) -> impl Future<Output = Result<bool, Error>> + Send + 'a
    where
        K: AsRef<[u8]> + ?Sized,
    {
        self.store.reset(key.as_ref())
    }
}
