//! The contract of a backend.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;

use crate::{Decision, Error, Facts, Op, Settlement, decide};

/// Keeps one log per key and applies operations to it.
///
/// Implement this for a backend, and run `limiter_testkit::conformance` over it: the suite checks every sentence below.
/// The default methods add nothing to the others, so a wrapper that does not forward them loses a little time, and no more.
///
/// # The log
/// A log is a sequence of entries `(at, cost)` in the order in which they were appended, `at` never decreasing.
///
/// - An operation happens at `now`: its given time or the store's, but no earlier than the newest entry of the log,
///   even if that entry has long expired.
/// - It fits iff for every limit the sum of the costs of the entries younger than the window, plus its own, is at most
///   the maximum. It is admitted or not as a whole.
/// - [`Op::appends`] says whether it appends its entry. An operation that appends nothing changes nothing.
/// - An append under a policy drops what that policy can never see again: the entries aged at least its longest window,
///   and all entries older than the newest ones that together reach its largest maximum (the appended one included).
///   Nothing else drops entries, so the history survives a change of policy as far as the last appending policy reached.
/// - A settlement drops all entries older than the newest ones that together reach [`MAX_COST`](crate::MAX_COST), which
///   no policy can see.
/// - An operation whose id an entry carries that is younger than the policy's longest window appends nothing: the
///   outcome is [`Repeated`](crate::Outcome::Repeated), with the verdict the entry was appended with.
/// - Each [`apply`](Self::apply), [`settle`](Self::settle) and [`reset`](Self::reset) is atomic for its key.
///
/// A store may forget a key altogether once nothing in it counts in the longest window of the policy that appended last.
/// A given time says nothing about the store's own clock: a log appended to at a given time is kept well beyond that.
///
/// # What is checked before
/// [`apply`](Self::apply) may rely on [`Op::checked`].
///
/// # Cancel safety
/// Dropping a future that has not finished may or may not have had the operation's effect, never a part of it.
pub trait WindowStore: Debug + Send + Sync + 'static {
    /// Applies an operation.
    ///
    /// # Errors
    /// Whatever keeps the store from answering; never a denial.
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Facts, Error>> + Send;

    /// [Checks](Op::checked) an operation, applies it and [decides](crate::decide) on it: what a front end asks for.
    ///
    /// A store that answers at once may have a shorter way to the same decision.
    ///
    /// # Errors
    /// Those of [`Op::checked`] and of [`apply`](Self::apply), and [`Inconsistent`](crate::ErrorKind::Inconsistent) for
    /// facts that contradict themselves.
    fn decide<'a>(&'a self, op: Op<'a>) -> impl Future<Output = Result<Decision, Error>> + Send + 'a {
        async move {
            let op = op.checked()?;
            let facts = self.apply(op).await?;
            facts.verify(&op)?;
            Ok(decide(&op, &facts))
        }
    }

    /// [`decide`](Self::decide) without a future, by a store that needs no other event for it: `Pending`, and nothing has
    /// happened but that the operation may have been checked in place, if the store is none or cannot now.
    ///
    /// Who holds a store that is known at run time only asks this first, and boxes no future where there is an answer.
    #[inline]
    fn decide_at_once(&self, _op: &mut Op<'_>) -> Poll<Result<Decision, Error>> {
        Poll::Pending
    }

    /// Sets the cost of one entry where it stands, or removes it if the cost is 0; `false`, without a change, if the
    /// log no longer holds it or it [has left](crate::Receipt::has_left) at the settlement's (clamped) time.
    /// A removed entry's id is forgotten.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    fn settle(&self, settlement: Settlement<'_>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes the whole log of a key; `false` if there was none.
    ///
    /// # Errors
    /// Whatever keeps the store from answering. A damaged log is no error: it is removed.
    fn reset(&self, key: &[u8]) -> impl Future<Output = Result<bool, Error>> + Send;
}

// Not by way of async-trait, whose future around the future would move the decision once more.
type BoxedDecision<'a> = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send + 'a>>;

/// The object-safe twin of [`WindowStore`], implemented for every store: `Arc<dyn DynWindowStore>` is a store too.
///
/// Its futures are boxed, but for decisions that are made [at once](WindowStore::decide_at_once). Do not implement it;
/// implement [`WindowStore`].
#[async_trait]
pub trait DynWindowStore: Debug + Send + Sync + 'static {
    /// [`WindowStore::apply`].
    async fn dyn_apply(&self, op: Op<'_>) -> Result<Facts, Error>;
    /// [`WindowStore::decide`].
    fn dyn_decide<'a>(&'a self, op: Op<'a>) -> BoxedDecision<'a>;
    /// [`WindowStore::decide_at_once`].
    fn dyn_decide_at_once(&self, op: &mut Op<'_>) -> Poll<Result<Decision, Error>>;
    /// [`WindowStore::settle`].
    async fn dyn_settle(&self, settlement: Settlement<'_>) -> Result<bool, Error>;
    /// [`WindowStore::reset`].
    async fn dyn_reset(&self, key: &[u8]) -> Result<bool, Error>;
}

#[async_trait]
impl<S: WindowStore> DynWindowStore for S {
    async fn dyn_apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.apply(op).await
    }

    fn dyn_decide<'a>(&'a self, op: Op<'a>) -> BoxedDecision<'a> {
        Box::pin(self.decide(op))
    }

    fn dyn_decide_at_once(&self, op: &mut Op<'_>) -> Poll<Result<Decision, Error>> {
        self.decide_at_once(op)
    }

    async fn dyn_settle(&self, settlement: Settlement<'_>) -> Result<bool, Error> {
        self.settle(settlement).await
    }

    async fn dyn_reset(&self, key: &[u8]) -> Result<bool, Error> {
        self.reset(key).await
    }
}

/// A decision by a store that is known at run time only.
enum Deciding<'a> {
    New(&'a dyn DynWindowStore, Op<'a>),
    Begun(BoxedDecision<'a>),
}

impl Future for Deciding<'_> {
    type Output = Result<Decision, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::New(store, op) => {
                let decision = store.dyn_decide_at_once(op);
                if decision.is_ready() {
                    return decision;
                }
                let mut begun = store.dyn_decide(*op);
                let decision = begun.as_mut().poll(cx);
                *self = Self::Begun(begun);
                decision
            }
            Self::Begun(begun) => begun.as_mut().poll(cx),
        }
    }
}

impl WindowStore for dyn DynWindowStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.dyn_apply(op).await
    }

    fn decide<'a>(&'a self, op: Op<'a>) -> impl Future<Output = Result<Decision, Error>> + Send + 'a {
        Deciding::New(self, op)
    }

    fn decide_at_once(&self, op: &mut Op<'_>) -> Poll<Result<Decision, Error>> {
        self.dyn_decide_at_once(op)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<bool, Error> {
        self.dyn_settle(settlement).await
    }

    async fn reset(&self, key: &[u8]) -> Result<bool, Error> {
        self.dyn_reset(key).await
    }
}

impl<S: WindowStore + ?Sized> WindowStore for Arc<S> {
    #[inline]
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Facts, Error>> + Send {
        (**self).apply(op)
    }

    #[inline]
    fn decide<'a>(&'a self, op: Op<'a>) -> impl Future<Output = Result<Decision, Error>> + Send + 'a {
        (**self).decide(op)
    }

    #[inline]
    fn decide_at_once(&self, op: &mut Op<'_>) -> Poll<Result<Decision, Error>> {
        (**self).decide_at_once(op)
    }

    #[inline]
    fn settle(&self, settlement: Settlement<'_>) -> impl Future<Output = Result<bool, Error>> + Send {
        (**self).settle(settlement)
    }

    #[inline]
    fn reset(&self, key: &[u8]) -> impl Future<Output = Result<bool, Error>> + Send {
        (**self).reset(key)
    }
}
