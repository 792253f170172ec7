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
/// To write a backend, read `OracleStore` in `limiter-testkit` first: it is this contract in 150 plain lines. A backend over
/// any key-value store with transactions or compare-and-swap loads, changes and saves a [`Log`]. Then run
/// `limiter_testkit::conformance` on it: the suite checks every numbered sentence below, and its failures name the sentence.
///
/// # Time
/// - **T1.** A timestamp is whole microseconds since the Unix epoch, below 2^53.
/// - **T2.** An operation without a given time happens at the store's own clock, read once, while nobody else can change the
///   log: behind the lock, or inside the transaction or script.
/// - **T3.** An operation happens at `now`: the given time or the store's, but no earlier than the newest entry of the log, even
///   if that entry counts nowhere any more.
/// - **T4.** The store's clock is close to the system's time, unless the store documents another epoch. It may step back; T3
///   makes that harmless.
/// - **T5.** A call blocks its thread for no longer than it takes to change one log in memory. What takes longer, it awaits.
///
/// # The log
/// A log is a sequence of entries in the order in which they were appended. An entry has a time `at`, a cost, the verdict that
/// it was appended with, and possibly a caller's id.
///
/// - **L1.** A log belongs to a [`LogKey`]: a name and a key, arbitrary text and bytes of any length, also empty. Logs that
///   differ in either share nothing.
/// - **L2.** An entry counts in a window `W` at `now` if and only if `now - at < W`.
/// - **L3.** An operation fits if and only if, for every limit, the sum of the costs of the entries that count in its window, plus
///   the operation's own cost, is at most the maximum. It is admitted or denied as a whole.
/// - **L4.** [`Op::appends`] says whether the operation appends its entry. An operation that appends nothing changes nothing.
/// - **L5.** An appended entry has `at = now`, the operation's cost and its id. Entries of one time stay separate entries.
/// - **L6.** An append drops the entries aged [`Retention::window`] or more.
/// - **L7.** An append drops the entries older than the newest ones that together reach [`Retention::max`], the appended one
///   included.
/// - **L8.** Nothing drops entries but L6, L7, S3, S5, S8 and forgetting.
/// - **L9.** An operation whose id belongs to an entry younger than [`Retention::window`] appends nothing. Its outcome is
///   [`Outcome::Repeated`] with that entry; its verdict is the one that the entry was appended with, also if the operation has
///   another mode, cost or policy; its usage is the current one. A log therefore holds an id at most once.
/// - **L10.** A denied acquire that appended nothing leaves no id behind.
/// - **L11.** The facts describe the log after the operation: [`LogFacts::newest`] is the time of the newest entry, whether or not
///   it counts, and [`Usage`] is exact for every limit, also where usage exceeds the maximum.
/// - **L12.** Each [`apply`](Self::apply), [`settle`](Self::settle) and [`reset`](Self::reset) is atomic for its log. Whatever runs at
///   once gives the answers of some serial order, across all handles of one store.
/// - **L13.** The store's [`Entry::id`] is unique among the entries that the log holds at one time. It may be the caller's id, and it
///   may be used again after the entry is gone.
///
/// # Settlements and resets
/// - **S1.** A settlement changes the entry whose id is [`Receipt::entry`](crate::Receipt::entry) and whose time is
///   [`Receipt::at`](crate::Receipt::at), and no other. A
///   receipt of another log names nothing.
/// - **S2.** The entry keeps its place, its time and its id; its cost becomes the settlement's.
/// - **S3.** A cost of 0 removes the entry, and its id is forgotten: the id may be appended again.
/// - **S4.** Nothing changes if the log no longer holds the entry, or if the receipt [has left](crate::Receipt::has_left) at the
///   settlement's time (as in T2 and T3). Removing an entry twice is one removal.
/// - **S5.** A settlement that changes something drops all entries older than the newest ones that together reach
///   [`MAX_COST`](crate::MAX_COST), which no policy can see.
/// - **S6.** A settlement never fails for its size: usage may exceed a maximum afterwards.
/// - **S7.** The answer says whether the settlement took effect, and describes the log afterwards, read by the settlement's
///   policy, whether it took effect or not. [`Usage::blocker`] is unspecified there.
/// - **S8.** A reset removes all entries and ids of one log, and says whether there was an entry.
///
/// # Forgetting
/// A store may forget a log altogether, as if it were reset, to free its room.
///
/// - **F1.** A log whose last append was at the store's clock is kept until `newest + Retention::window` of that append, by the
///   store's clock.
/// - **F2.** A log whose last append was at a given time `g` is kept until `now - g + Retention::window` plus 60 s have passed on
///   the store's clock since that append, where `now` is as in T3. Nobody knows how the caller's time passes; if it passes more
///   slowly than real time, the caller resets or repeats in time.
/// - **F3.** [`Log::expires_at`] computes both.
///
/// # Errors and preconditions
/// [`apply`](Self::apply) may rely on [`Op::checked`]. An error means that nothing is known about the operation's effect unless
/// its [kind](crate::ErrorKind) says so. A denial is never an error.
///
/// # Cancel safety
/// Dropping a future that has not finished may or may not have had the operation's effect, never a part of it.
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
