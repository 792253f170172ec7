//! For authors of stores: the contract of a backend, what a store is asked, and what it answers.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;

use crate::clock::Timer;
use crate::decision::Decision;
pub use crate::decision::decide;
use crate::error::Error;
pub use crate::facts::{Entry, Facts, LogFacts, Outcome, SettlementFacts, Usage};
pub use crate::log::Log;
pub use crate::log_key::LogKey;
pub use crate::op::{At, Mode, Op, Retention};
pub use crate::settlement::Settlement;
pub use crate::status::settled;

/// Keeps one log for each limiter name and key, and applies operations to it.
///
/// To write a backend, read `OracleStore` in `limiter-testkit` first: it is this contract in 200 plain lines. A backend over
/// any key-value store with transactions or compare-and-swap loads, changes and saves a [`Log`]. Then run
/// `limiter_testkit::conformance` on it: the suite checks every numbered sentence below, and its failures name the sentence.
///
#[doc = include_str!("contract.md")]
pub trait WindowStore: Debug + Send + Sync + 'static {
    /// Applies an operation.
    ///
    /// # Errors
    /// Whatever keeps the store from answering; never a denial.
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Facts, Error>> + Send;

    /// Sets the cost of one entry where it stands, or removes the entry if the cost is 0. Nothing changes if the log no
    /// longer holds the entry, or if it [has left](crate::Receipt::has_left) at the settlement's (clamped) time. The id of
    /// a removed entry is forgotten.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    fn settle(&self, settlement: Settlement<'_>) -> impl Future<Output = Result<SettlementFacts, Error>> + Send;

    /// Removes a whole log; `false` if there was none.
    ///
    /// # Errors
    /// Whatever keeps the store from answering. A damaged log is no error: it is removed.
    fn reset(&self, log: LogKey<'_>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// [Checks](Op::checked) an operation, applies it and decides on it without a future, if the store can; `None` without
    /// any effect if it cannot. Default: `None`.
    ///
    /// A limiter tries this first, so a store in memory needs no future, not even behind `dyn`. A wrapper that does not
    /// forward it stays correct, only slower.
    #[inline(always)]
    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let _ = op;
        None
    }

    /// [`decide_at_once`](Self::decide_at_once) for a limiter's future, or else `otherwise`. A store that writes its decision
    /// right here saves copying it, a third of an `.await` on a store in memory.
    #[doc(hidden)]
    #[inline(always)]
    fn poll_decision(
        &self,
        op: Op<'_>,
        otherwise: impl FnOnce() -> Poll<Result<Decision, Error>>,
    ) -> Poll<Result<Decision, Error>> {
        match self.decide_at_once(op) {
            Some(decision) => Poll::Ready(decision),
            None => otherwise(),
        }
    }

    /// Returns the timer with which [`Request::within`](crate::Request::within) waits on this store, if the store brings one.
    /// Default: `None`.
    fn timer(&self) -> Option<&dyn Timer> {
        None
    }
}

/// A store that answers at once and cannot fail: one in memory. It needs no runtime.
///
/// The methods are those of [`WindowStore`], under the same contract.
pub trait NowStore: WindowStore {
    /// Applies an operation: [`WindowStore::apply`].
    fn apply_now(&self, op: &Op<'_>) -> Facts;

    /// [Checks](Op::checked) an operation, applies it and decides on it. A store may override this with a shorter way to the
    /// same decision.
    ///
    /// # Errors
    /// Those of [`Op::checked`].
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        let op = op.checked()?;
        Ok(decide(&op, self.apply_now(&op)))
    }

    /// Settles or removes an entry: [`WindowStore::settle`].
    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts;

    /// Removes a whole log: [`WindowStore::reset`].
    fn reset_now(&self, log: LogKey<'_>) -> bool;
}

impl<S: NowStore> NowStore for Arc<S> {
    #[inline(always)]
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        (**self).apply_now(op)
    }

    #[inline(always)]
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        (**self).decide_now(op)
    }

    #[inline]
    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        (**self).settle_now(settlement)
    }

    #[inline]
    fn reset_now(&self, log: LogKey<'_>) -> bool {
        (**self).reset_now(log)
    }
}

/// The object-safe twin of [`WindowStore`], implemented for every store: `Arc<dyn DynWindowStore>` is a store too.
///
/// Its futures are boxed, except that a decision is first asked for [at once](WindowStore::decide_at_once). Do not implement
/// this; implement [`WindowStore`].
#[async_trait]
pub trait DynWindowStore: Debug + Send + Sync + 'static {
    /// Calls [`WindowStore::apply`].
    async fn dyn_apply(&self, op: Op<'_>) -> Result<Facts, Error>;
    /// Calls [`WindowStore::settle`].
    async fn dyn_settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error>;
    /// Calls [`WindowStore::reset`].
    async fn dyn_reset(&self, log: LogKey<'_>) -> Result<bool, Error>;
    /// Calls [`WindowStore::decide_at_once`].
    fn dyn_decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>>;
    /// Calls [`WindowStore::timer`].
    fn dyn_timer(&self) -> Option<&dyn Timer>;
}

#[async_trait]
impl<S: WindowStore> DynWindowStore for S {
    async fn dyn_apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.apply(op).await
    }

    async fn dyn_settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.settle(settlement).await
    }

    async fn dyn_reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.reset(log).await
    }

    fn dyn_decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        self.decide_at_once(op)
    }

    fn dyn_timer(&self) -> Option<&dyn Timer> {
        self.timer()
    }
}

impl WindowStore for dyn DynWindowStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.dyn_apply(op).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.dyn_settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.dyn_reset(log).await
    }

    #[inline]
    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        self.dyn_decide_at_once(op)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.dyn_timer()
    }
}

impl<S: WindowStore + ?Sized> WindowStore for Arc<S> {
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Facts, Error>> + Send {
        (**self).apply(op)
    }

    fn settle(&self, settlement: Settlement<'_>) -> impl Future<Output = Result<SettlementFacts, Error>> + Send {
        (**self).settle(settlement)
    }

    fn reset(&self, log: LogKey<'_>) -> impl Future<Output = Result<bool, Error>> + Send {
        (**self).reset(log)
    }

    #[inline(always)]
    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        (**self).decide_at_once(op)
    }

    #[inline(always)]
    fn poll_decision(
        &self,
        op: Op<'_>,
        otherwise: impl FnOnce() -> Poll<Result<Decision, Error>>,
    ) -> Poll<Result<Decision, Error>> {
        (**self).poll_decision(op, otherwise)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        (**self).timer()
    }
}
