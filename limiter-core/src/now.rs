//! Stores that answer at once.

use std::sync::Arc;
use std::time::Duration;

use crate::{Decision, Error, Facts, Limiter, Mode, Op, Receipt, Settlement, WindowStore};

/// A store that answers at once and cannot fail: one in memory. It needs no runtime.
///
/// The methods are those of [`WindowStore`], under the same contract.
pub trait NowStore: WindowStore {
    /// [`WindowStore::apply`].
    fn apply_now(&self, op: &Op<'_>) -> Facts;
    /// The decision on an operation: `decide(op, &self.apply_now(op))`. A store that is asked for no more than this
    /// need not write down its facts.
    fn decide_now(&self, op: &Op<'_>) -> Decision;
    /// Checks an operation, applies it and decides on it: [`WindowStore::decide`].
    ///
    /// # Errors
    /// Those of [`Op::checked`].
    fn try_decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        Ok(self.decide_now(&op.checked()?))
    }
    /// [`WindowStore::settle`].
    fn settle_now(&self, settlement: &Settlement<'_>) -> bool;
    /// [`WindowStore::reset`].
    fn reset_now(&self, key: &[u8]) -> bool;
}

impl<S: NowStore> NowStore for Arc<S> {
    #[inline]
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        (**self).apply_now(op)
    }

    #[inline]
    fn decide_now(&self, op: &Op<'_>) -> Decision {
        (**self).decide_now(op)
    }

    #[inline]
    fn try_decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        (**self).try_decide_now(op)
    }

    #[inline]
    fn settle_now(&self, settlement: &Settlement<'_>) -> bool {
        (**self).settle_now(settlement)
    }

    #[inline]
    fn reset_now(&self, key: &[u8]) -> bool {
        (**self).reset_now(key)
    }
}

/// The same operations without a future, over a store that answers at once.
// A call instead of inlining would be a fifth of what a store in memory takes.
impl<S: NowStore> Limiter<S> {
    /// Takes one unit if it fits. It cannot fail: every limit has room for one.
    #[inline(always)]
    pub fn acquire_now(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Decision {
        let mut op = self.op(Mode::Acquire, key, 1);
        op.at = self.at(op.at);
        self.store.decide_now(&op)
    }

    /// Takes `cost` units if they fit, all or nothing.
    ///
    /// # Errors
    /// [`InvalidCost`](crate::ErrorKind::InvalidCost) and [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit).
    #[inline(always)]
    pub fn acquire_n_now(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: u64) -> Result<Decision, Error> {
        self.run_now(self.op(Mode::Acquire, key, cost))
    }

    /// Looks whether one unit would fit, and consumes nothing.
    pub fn peek_now(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Decision {
        let mut op = self.op(Mode::Peek, key, 1);
        op.at = self.at(op.at);
        self.store.decide_now(&op)
    }

    /// Runs one operation with a policy, cost, id or time of its own.
    ///
    /// # Errors
    /// [`InvalidCost`](crate::ErrorKind::InvalidCost) and [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit).
    #[inline(always)]
    pub fn run_now(&self, mut op: Op<'_>) -> Result<Decision, Error> {
        op.at = self.at(op.at);
        self.store.try_decide_now(op)
    }

    /// Counts `cost` units, whether they fit or not.
    ///
    /// # Errors
    /// [`InvalidCost`](crate::ErrorKind::InvalidCost) for 0.
    pub fn record_now(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: u64) -> Result<Decision, Error> {
        self.run_now(self.op(Mode::Record, key, cost))
    }

    /// Removes the entry that `receipt` names; `false` if it was refunded before or has left the log.
    pub fn refund_now(&self, key: &(impl AsRef<[u8]> + ?Sized), receipt: Receipt) -> bool {
        self.settle_now(key, receipt, 0)
    }

    /// Replaces the cost of the entry that `receipt` names; `false` if it was refunded or has left the log.
    pub fn settle_now(&self, key: &(impl AsRef<[u8]> + ?Sized), receipt: Receipt, cost: u64) -> bool {
        let mut settlement = Settlement::new(key, receipt, cost);
        settlement.at = self.at(settlement.at);
        self.store.settle_now(&settlement)
    }

    /// Removes the whole log of a key; `false` if there was none.
    pub fn reset_now(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> bool {
        self.store.reset_now(key.as_ref())
    }

    /// Takes one unit, blocking the thread until it fits, as [`Limiter::ready`] does, for at most `max_wait`.
    /// The decision is a denial if it would not fit by then; that is known, and returned, before waiting.
    pub fn ready_now(&self, key: &(impl AsRef<[u8]> + ?Sized), max_wait: Duration) -> Decision {
        let mut decision = self.acquire_now(key);
        let deadline = decision.at().saturating_add(max_wait);
        while let Some(wait) = crate::ready::wait_before(&decision, deadline) {
            std::thread::sleep(wait);
            decision = self.acquire_now(key);
        }
        decision
    }
}
