//! The store contract, for authors of backends and wrappers.
//!
//! [`WindowStore`] is the contract. To write a backend:
//!
//! 1. Read `ReferenceStore` in `limiter-testkit` first. It implements the whole contract in plain code without optimisations.
//! 2. Build on `limiter-log` if the backend can replace bytes that are still the old ones, or on [`Log`], the algorithm as a value.
//! 3. Run `limiter_testkit::conformance` on the backend. It checks every numbered rule of the contract, and a failure quotes
//!    the rules that the wrong result may break.
//!
//! A store receives an [`Op`] or a [`Settlement`] and returns [`Facts`] or [`SettlementFacts`]. [`decide`] and
//! [`Settled::new`](crate::Settled::new) turn facts into the values that callers see. A store built on [`Log`] needs no other part of
//! this module. The rest is for few:
//!
//! | item | needed by |
//! |---|---|
//! | [`Retention`], [`Merging`] | a store with its own representation of a log: which entries an append drops, and which it merges |
//! | [`WindowStore::node`] | a store whose parts fail alone, such as a cluster |
//! | [`WindowStore::try_decide`] | a store that often decides without waiting, and wrappers that forward it |
//! | [`WindowStore::inner`] | wrappers |
//! | [`Hints`] | wrappers that count decisions |
//! | [`LogInfo`], [`LiveKey`] | stores that operators can inspect |

pub(crate) mod clock;
pub(crate) mod facts;
pub(crate) mod joint;
pub(crate) mod live;
pub(crate) mod log_key;
pub(crate) mod op;
pub(crate) mod per_limit;
pub(crate) mod settlement;
pub(crate) mod with_clock;

use std::fmt::Debug;
use std::sync::Arc;

pub use async_trait::async_trait;

use self::clock::Clock;
pub use self::facts::{Changed, Entry, Facts, LogFacts, Outcome, SettlementFacts, Usage};
pub use self::joint::JointOp;
pub use self::live::{LiveKey, LogInfo, StoredKey};
pub use self::log_key::LogKey;
pub use self::op::{At, EntryId, Hints, Merging, Mode, Op, Retention};
pub use self::settlement::{Change, Settlement};
use crate::decision::Decision;
pub use crate::decision::decide;
use crate::error::Error;
pub use crate::log::Log;
use crate::policy::time::Timestamp;

/// The results of [`WindowStore::apply_all`], in the order of the operations.
pub type JointFacts = Vec<Result<Facts, Error>>;

/// The store contract: one log for each limiter name and key, and atomic operations on it.
///
/// The [module documentation](self) lists how to write a backend. `limiter_testkit::conformance` checks every numbered sentence below.
///
/// Implement it with [`#[async_trait]`](https://docs.rs/async-trait), which boxes the futures and so makes the trait object safe:
/// `Arc<dyn WindowStore>` is also a store.
///
#[doc = include_str!("store/contract.md")]
#[async_trait]
pub trait WindowStore: Debug + Send + Sync + 'static {
    /// Applies an operation.
    ///
    /// # Errors
    /// If the store fails. A denial is never an error.
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error>;

    /// Replaces the cost of one entry, removes the entry, or renews it.
    ///
    /// # Errors
    /// If the store fails. A missing or expired entry is not an error.
    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error>;

    /// Removes a whole log. Returns `false` if there was none.
    ///
    /// # Errors
    /// If the store fails. A damaged log is not an error: it is removed.
    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error>;

    /// Applies several operations on different logs as one: all append, or if one denies, none. `None` if the store cannot; then
    /// nothing has changed, and the caller applies them one by one.
    ///
    /// Default: `None`. A wrapper that does not forward it stays correct: its calls take longer, and others may see one log
    /// charged before another. To offer it, also return an [identity](Self::identity). A store that cannot apply these operations
    /// as one returns `None` without waiting.
    ///
    /// # Errors
    /// If the store fails. An error that is not [retryable](Error::is_retryable) identifies its log, if it is about one.
    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let _ = ops;
        Ok(None)
    }

    /// [Checks](Op::checked), applies and decides an operation if the store can do so without waiting.
    ///
    /// Otherwise has no effect and returns `None`, which is the default.
    ///
    /// A limiter tries this first, so an in-memory store needs no boxed future. A wrapper that does not forward it stays correct,
    /// only slower.
    #[inline(always)]
    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let _ = op;
        None
    }

    /// Returns the store that this one wraps: [`clock`](Self::clock) and [`node`](Self::node) forward to it by default.
    ///
    /// Operations never do, because a wrapper that changes one way to apply an operation has to change all of them.
    /// With `#[deny(clippy::missing_trait_methods)]` on a wrapper's implementation, clippy names each method that it lacks.
    /// Default: `None`.
    fn inner(&self) -> Option<&dyn WindowStore> {
        None
    }

    /// Returns the clock that the store takes its time from, if it is not the store's own.
    ///
    /// [`Acquire::within`](crate::request::Acquire::within) sleeps by it. Default: the [inner](Self::inner) store's. Without one,
    /// waiting uses tokio's timers.
    fn clock(&self) -> Option<&dyn Clock> {
        self.inner()?.clock()
    }

    /// Returns the name of the part of the store that holds a log now and fails alone, such as a master of a Redis Cluster:
    /// `10.0.0.7:6379`. Never waits. The log may have moved when the next operation begins.
    ///
    /// `None` if the store fails as a whole, or if the part is unknown. A wrapper asks for it when operations fail. Default: that
    /// of the [inner](Self::inner) store.
    fn node(&self, log: LogKey<'_>) -> Option<Arc<str>> {
        self.inner()?.node(log)
    }

    /// Returns a number that the handles of one store share, and no other store has while both exist, if the store
    /// [applies operations as one](Self::apply_all). Only operations of limiters whose stores have the same identity go there.
    ///
    /// Default: `None`; for a wrapper of a store with an identity, the wrapper's address. An [`Arc`] has the identity of the store
    /// in it.
    fn identity(&self) -> Option<usize> {
        self.inner()?.identity()?;
        Some(std::ptr::from_ref(self).addr())
    }

    /// Returns the store's address. An [`Arc`] returns its store's.
    #[doc(hidden)]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: WindowStore + ?Sized> WindowStore for Arc<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        (**self).apply(op).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        (**self).settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        (**self).reset(log).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        (**self).apply_all(ops).await
    }

    #[inline(always)]
    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        (**self).try_decide(op)
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        (**self).inner()
    }

    fn clock(&self) -> Option<&dyn Clock> {
        (**self).clock()
    }

    fn node(&self, log: LogKey<'_>) -> Option<Arc<str>> {
        (**self).node(log)
    }

    fn identity(&self) -> Option<usize> {
        (**self).identity()
    }

    fn address(&self) -> usize {
        (**self).address()
    }
}

/// A synchronous store: it never waits, cannot fail and needs no runtime. In-memory stores implement it.
///
/// Its methods correspond to [`WindowStore`]'s and follow the same contract.
///
/// Code that calls `.now()` takes an `Arc<dyn SyncStore>` if its tests use a different store, such as one with a mock clock:
///
/// ```
/// # use std::sync::Arc;
/// # use limiter_core::{Limiter, SyncStore, WithClock, policy};
/// # use limiter_testkit::{MockClock, ReferenceStore as MemoryStore};
/// let store: Arc<dyn SyncStore> = Arc::new(WithClock::new(MemoryStore::new(), MockClock::new()));
/// let search = Limiter::new("search", policy!("5/10s"), store);
/// assert!(search.acquire("customer 7").now()?.is_allowed());
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` may have to wait, so it has no `.now()`",
    note = "`.await` works with every store",
    note = "`.now()` needs a synchronous store, such as `Limiter<MemoryStore>` or `Limiter<Arc<dyn SyncStore>>`; `Limiter` alone is `Limiter<SharedStore>`"
)]
pub trait SyncStore: WindowStore {
    /// Applies an operation. See [`WindowStore::apply`].
    fn apply_now(&self, op: &Op<'_>) -> Facts;

    /// [Checks](Op::checked) an operation, applies it and decides on it.
    ///
    /// Default: calls [`apply_now`](Self::apply_now) and [`decide`]. A store may override this with a faster path to the same
    /// decision. Returns the errors of [`Op::checked`].
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        let op = op.checked()?;
        Ok(decide(&op, self.apply_now(&op)))
    }

    /// Applies several operations on different logs as one, at one reading of the clock. See [`WindowStore::apply_all`].
    ///
    /// Calls of others may come between its operations. A caller that shares the store needs a lock.
    fn apply_all_now(&self, ops: &[JointOp<'_>]) -> Vec<Facts>;

    /// Replaces the cost of one entry, removes the entry, or renews it. See [`WindowStore::settle`].
    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts;

    /// Removes a whole log. Returns `false` if there was none. See [`WindowStore::reset`].
    fn reset_now(&self, log: LogKey<'_>) -> bool;

    /// Returns the time of the store's clock.
    fn read_clock(&self) -> Timestamp;
}

#[deny(clippy::missing_trait_methods)]
impl<S: SyncStore + ?Sized> SyncStore for Arc<S> {
    #[inline(always)]
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        (**self).apply_now(op)
    }

    #[inline(always)]
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        (**self).decide_now(op)
    }

    fn apply_all_now(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        (**self).apply_all_now(ops)
    }

    #[inline]
    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        (**self).settle_now(settlement)
    }

    #[inline]
    fn reset_now(&self, log: LogKey<'_>) -> bool {
        (**self).reset_now(log)
    }

    fn read_clock(&self) -> Timestamp {
        (**self).read_clock()
    }
}
