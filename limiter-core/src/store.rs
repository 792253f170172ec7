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
/// [module documentation](self) lists the steps. `limiter_testkit::conformance` checks every numbered rule below.
///
/// # Time
/// - **T1.** A timestamp is a whole number of microseconds since the Unix epoch, below 2^53.
/// - **T2.** An operation without a caller-supplied time happens at the time of the store's clock. The store reads the clock
///   once, while no other operation can change the log: under the lock, or inside the transaction or script.
/// - **T3.** An operation happens at `now`: the caller-supplied time or the store's, clamped to the log's newest entry. If
///   the newest entry is later, `now` is the time of that entry, even if it has expired.
/// - **T4.** The store's clock is close to the system time, unless the store documents another epoch. It may step back; T3
///   makes that harmless.
/// - **T5.** A call blocks its thread no longer than changing one log in memory takes. It awaits anything slower.
///
/// # The log
/// A log is a sequence of entries in the order in which they were appended. An entry has a time `at`, a cost, the verdict at
/// the time of its append, and optionally a caller's id.
///
/// - **L1.** A log belongs to a [`LogKey`]: a name (any text) and a key (any bytes). Both have any length and may be empty.
///   Logs that differ in either share no entries.
/// - **L2.** An entry counts in a window `W` at `now` if and only if `now - at < W`.
/// - **L3.** A limit's usage is the total cost of the entries that count in its window. An operation fits a limit if and only
///   if usage plus the operation's cost is at most the maximum. It is admitted if and only if it fits every limit.
/// - **L4.** [`Op::appends`] says whether the operation appends an entry. An operation that appends nothing changes nothing.
/// - **L5.** An appended entry has `at = now`, the operation's cost and its id. Entries with equal times stay separate.
/// - **L6.** An append drops the entries aged [`Retention::window`] or more.
/// - **L7.** An append drops the entries older than the newest ones that together reach [`Retention::max`]. The appended entry
///   is one of the newest.
/// - **L8.** Only L6, L7, S3, S5, S8 and forgetting remove entries.
/// - **L9.** An operation whose id belongs to an entry younger than [`Retention::window`] appends nothing. Its outcome is
///   [`Outcome::Repeated`] with that entry. Its verdict is that of the entry, even if mode, cost or policy differ. Its usage
///   is the current usage. A log therefore never holds two entries with the same id.
/// - **L10.** A denied acquire that appended nothing leaves no id behind.
/// - **L11.** The facts describe the log after the operation. [`LogFacts::newest`] is the time of the newest entry, whether or
///   not it counts. [`Usage`] is exact for every limit, even if usage exceeds the maximum.
/// - **L12.** Each [`apply`](Self::apply), [`settle`](Self::settle) and [`reset`](Self::reset) is atomic for its log.
///   Concurrent calls, through any handles of one store, return the results of some serial order.
/// - **L13.** The store's [`Entry::id`] is unique among the entries that the log currently holds. It may be the caller's id,
///   and it may be reused once the entry is gone.
///
/// # Settlements and resets
/// - **S1.** A settlement changes only the entry whose id is [`Receipt::entry`](crate::Receipt::entry) and whose time is
///   [`Receipt::at`](crate::Receipt::at). A receipt of another log matches no entry.
/// - **S2.** The entry keeps its position, its time and its id. Its cost becomes the settlement's cost.
/// - **S3.** A cost of 0 removes the entry and its id. The id may then be appended again.
/// - **S4.** A settlement changes nothing if the log no longer holds the entry. It also changes nothing if the receipt
///   [has expired](crate::Receipt::has_left) at the settlement's time, as defined in T2 and T3.
/// - **S5.** A settlement that takes effect drops all entries older than the newest ones that together reach
///   [`MAX_COST`](crate::MAX_COST). No decision depends on them.
/// - **S6.** A settlement accepts any cost up to [`MAX_COST`](crate::MAX_COST). Usage may exceed a maximum afterwards.
/// - **S7.** The facts say whether the settlement took effect. In either case they describe the log afterwards under the
///   settlement's policy. [`Usage::blocker`] is unspecified.
/// - **S8.** A reset removes all entries and ids of one log, and returns whether there was an entry.
///
/// # Forgetting
/// To free memory, a store may forget a whole log, as if it had been reset.
///
/// - **F1.** If the last append used the store's clock, the store keeps the log until its clock reaches `newest` plus the
///   [`Retention::window`] of that append.
/// - **F2.** If the last append had a caller-supplied time `g`, the store keeps the log for `now - g + window + 60 s` after
///   that append. This duration is measured by the store's clock. `now` is defined in T3, and `window` is the
///   [`Retention::window`] of that append. If the caller's time passes more slowly than real time, the store may forget
///   entries that still count.
/// - **F3.** [`Log::expires_at`] returns the time of F1 or F2.
///
/// # Errors and preconditions
/// [`apply`](Self::apply) may assume that [`Op::checked`] accepted the operation. After an error the operation may or may not
/// have taken effect, unless the error's [kind](crate::ErrorKind) says more. A denial is never an error.
///
/// # Cancel safety
/// If a future is dropped before it completes, the operation may or may not take effect, but never in part.
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
