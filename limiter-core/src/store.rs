//! The store contract, for authors of backends and wrappers.
//!
//! [`WindowStore`] is the contract. To write a backend:
//!
//! 1. Read `OracleStore` in `limiter-testkit` first. It implements the whole contract in plain code without optimisations.
//! 2. Build on [`Log`] if the backend can load and save bytes atomically: it is the algorithm as a value.
//! 3. Run `limiter_testkit::conformance` on the backend. It checks every numbered rule of the contract, and a failure names
//!    the rule.
//!
//! A store receives an [`Op`] or a [`Settlement`] and returns [`Facts`] or [`SettlementFacts`]. [`decide`] and [`settled`]
//! turn facts into the values that callers see.

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

/// The contract of a store: one log for each limiter name and key, and atomic operations on it.
///
/// To write a backend, first read `OracleStore` in `limiter-testkit`, which is the reference implementation. The
/// [module documentation](self) lists the steps. `limiter_testkit::conformance` checks every numbered sentence below.
///
#[doc = include_str!("contract.md")]
pub trait WindowStore: Debug + Send + Sync + 'static {
    /// Applies an operation.
    ///
    /// # Errors
    /// If the store fails. A denial is never an error.
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Facts, Error>> + Send;

    /// Replaces the cost of one entry, or removes the entry if the cost is 0.
    ///
    /// # Errors
    /// If the store fails. A missing or expired entry is not an error.
    fn settle(&self, settlement: Settlement<'_>) -> impl Future<Output = Result<SettlementFacts, Error>> + Send;

    /// Removes a whole log. Returns `false` if there was none.
    ///
    /// # Errors
    /// If the store fails. A damaged log is not an error: it is removed.
    fn reset(&self, log: LogKey<'_>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// [Checks](Op::checked) an operation, applies it and decides on it, if the store can do so without waiting.
    ///
    /// Otherwise returns `None` and has no effect. Default: `None`.
    ///
    /// A limiter tries this first, so an in-memory store needs no boxed future, not even behind `dyn`. A wrapper that does
    /// not forward it stays correct, only slower.
    #[inline(always)]
    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let _ = op;
        None
    }

    /// Polls a limiter's future: [`decide_at_once`](Self::decide_at_once), or `otherwise` if that returns `None`.
    ///
    /// A store may override this to write the decision in place, which saves a copy per `.await`.
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

    /// Returns the timer that [`Request::within`](crate::Request::within) sleeps on.
    ///
    /// Default: `None`. Waiting then uses the limiter's timer.
    fn timer(&self) -> Option<&dyn Timer> {
        None
    }
}

/// A synchronous store: it never waits, cannot fail and needs no runtime. In-memory stores implement it.
///
/// Its methods correspond to those of [`WindowStore`] and follow the same contract.
pub trait NowStore: WindowStore {
    /// Applies an operation. See [`WindowStore::apply`].
    fn apply_now(&self, op: &Op<'_>) -> Facts;

    /// [Checks](Op::checked) an operation, applies it and decides on it.
    ///
    /// Default: calls [`apply_now`](Self::apply_now) and [`decide`]. A store may override this with a faster path to the same
    /// decision.
    ///
    /// # Errors
    /// The errors of [`Op::checked`].
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        let op = op.checked()?;
        Ok(decide(&op, self.apply_now(&op)))
    }

    /// Replaces the cost of one entry, or removes the entry. See [`WindowStore::settle`].
    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts;

    /// Removes a whole log. Returns `false` if there was none. See [`WindowStore::reset`].
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

/// The object-safe version of [`WindowStore`], implemented for every store.
///
/// `Arc<dyn DynWindowStore>` implements [`WindowStore`] again. It tries [`decide_at_once`](WindowStore::decide_at_once)
/// first and boxes a future only if that returns `None`. Implement [`WindowStore`], not this trait.
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
