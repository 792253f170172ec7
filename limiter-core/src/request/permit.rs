//! Permits: admitted acquires as values.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::run::Request;
use super::settle::Settle;
use super::verb::Acquire;
use crate::clock::BoxFuture;
use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::key::KeyBuf;
use crate::limiter::Limiter;
use crate::log_key::LogKey;
use crate::policy::Policy;
use crate::settlement::Receipt;
use crate::store::{NowStore, WindowStore};

/// An acquire whose answer is a [`Permit`] or, if it is denied, the [`Decision`]: a future.
///
/// # Errors
/// As [`Request`].
#[must_use = "a request does nothing until it is awaited, or `now` is called"]
#[derive(Debug)]
pub struct PermitRequest<'a, S, B>(Request<'a, S, B, Acquire>);

/// An admitted acquire, to be settled or refunded later.
///
/// Dropping a permit keeps the charge: a request that crashed, or whose client went away, has still used its units. If it
/// should not, see [`refund_on_drop`](Self::refund_on_drop).
///
/// ```
/// # use limiter_core::{Limiter, policy};
/// # use limiter_testkit::OracleStore as MemoryStore;
/// # let chat = Limiter::new("chat", policy!("10000/1m"), MemoryStore::new());
/// match chat.acquire("customer 7").cost(4_000).permit().now()? {
///     Ok(permit) => {
///         // The answer took fewer tokens than reserved.
///         let settled = permit.settle(1_250).now();
///         assert_eq!(settled.status().remaining(), 8_750);
///     }
///     Err(denied) => println!("retry in {:?}", denied.retry_after()),
/// }
/// # Ok::<(), limiter_core::Error>(())
/// ```
///
/// # Acquire and refund, or peek and record?
/// To count only some calls, failed logins say, there are two ways, and they differ when calls overlap. Take a limit of three
/// failures a minute and four correct logins at once:
///
/// - **Acquire first, refund on success.** Each call holds a unit while it runs, so the fourth login is denied although none
///   failed. In return at most three guesses can ever be in flight: use this where a guess must not slip through.
/// - **Peek first, record on failure.** All four logins succeed. But a hundred guesses sent at once all see an empty log, and
///   all hundred are tried before any is counted. Use this only where an overshoot by the calls in flight does no harm.
pub struct Permit<'a, S> {
    limiter: Handle<'a, S>,
    key: KeyBuf,
    policy: Option<Cow<'a, Policy>>,
    receipt: Receipt,
    decision: Decision,
}

enum Handle<'a, S> {
    Borrowed(&'a Limiter<S>),
    Owned(Limiter<S>),
}

impl<'a, S, B> Request<'a, S, B, Acquire> {
    /// Turns an admitted acquire into a [`Permit`], which can settle its cost or refund it.
    pub fn permit(self) -> PermitRequest<'a, S, B> {
        PermitRequest(self)
    }
}

impl<'a, S, B> PermitRequest<'a, S, B> {
    /// Acquires on a store that answers at once, without a future.
    ///
    /// # Errors
    /// As [`Request::now`].
    pub fn now(self) -> Result<Result<Permit<'a, S>, Decision>, Error>
    where
        S: NowStore,
        B: AsRef<[u8]> + Clone,
    {
        let call = self.0.call().clone();
        permit(call.limiter, call.key.as_ref(), call.policy, self.0.now()?)
    }
}

fn permit<'a, S>(
    limiter: &'a Limiter<S>,
    key: &[u8],
    policy: Option<&'a Policy>,
    decision: Decision,
) -> Result<Result<Permit<'a, S>, Decision>, Error> {
    if !decision.allowed() {
        return Ok(Err(decision));
    }
    let Some(receipt) = decision.receipt() else {
        let log = LogKey { name: limiter.name(), key };
        return Err(Error::new(ErrorKind::Inconsistent, "the store admitted without a receipt").with_log(log));
    };
    let policy = policy.map(Cow::Borrowed);
    Ok(Ok(Permit { limiter: Handle::Borrowed(limiter), key: key.into(), policy, receipt, decision }))
}

impl<'a, S, B> Future for PermitRequest<'a, S, B>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<Result<Permit<'a, S>, Decision>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(Pin::new(&mut self.0).poll(context))?;
        let call = self.0.call();
        Poll::Ready(permit(call.limiter, call.key.as_ref(), call.policy, decision))
    }
}

impl<'a, S> Permit<'a, S> {
    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        match &self.limiter {
            Handle::Borrowed(limiter) => limiter,
            Handle::Owned(limiter) => limiter,
        }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.as_ref()
    }

    /// Returns the receipt of the entry.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// Returns the decision that admitted the acquire.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Replaces the cost of the acquire by the actual one. It can be settled again, as the cost becomes known bit by bit.
    pub fn settle(&self, cost: u64) -> Settle<'_, S, &[u8]> {
        let settle = Settle::new(self.limiter(), self.key(), self.receipt, cost);
        match &self.policy {
            Some(policy) => settle.policy(policy),
            None => settle,
        }
    }

    /// Removes the acquire from the log, as if it had never been.
    pub fn refund(&self) -> Settle<'_, S, &[u8]> {
        self.settle(0)
    }

    /// Returns the same permit without a borrow, so that it can move into a task or a response body.
    #[must_use]
    pub fn into_owned(self) -> Permit<'static, S>
    where
        S: Clone,
    {
        let limiter = match self.limiter {
            Handle::Borrowed(limiter) => limiter.clone(),
            Handle::Owned(limiter) => limiter,
        };
        let policy = self.policy.map(|policy| Cow::Owned(policy.into_owned()));
        let Self { key, receipt, decision, .. } = self;
        Permit { limiter: Handle::Owned(limiter), key, policy, receipt, decision }
    }

    /// Refunds the acquire when the result is dropped, unless it is [confirmed](RefundOnDrop::confirm). For stores that
    /// answer at once, where the refund is certain.
    pub fn refund_on_drop(self) -> RefundOnDrop<'a, S>
    where
        S: NowStore,
    {
        let refund = |permit: Self| {
            let _ = permit.refund().now();
        };
        RefundOnDrop { permit: Some(self), refund: Some(Box::new(refund)) }
    }

    /// Refunds the acquire when the result is dropped, unless it is [confirmed](RefundOnDrop::confirm). For every store:
    /// `drop` cannot wait for a network, so it hands the refund to `spawn`, for instance
    /// `|refund| drop(tokio::spawn(refund))`.
    ///
    /// The refund is not certain: it is lost if the process ends before it is sent, or if the store fails. The charge then
    /// stays until it expires.
    pub fn refund_on_drop_with(
        self,
        spawn: impl FnOnce(BoxFuture<'static, Result<(), Error>>) + Send + 'a,
    ) -> RefundOnDrop<'a, S>
    where
        S: WindowStore + Clone,
    {
        let refund = move |permit: Self| {
            let permit = permit.into_owned();
            spawn(Box::pin(async move { permit.refund().await.map(drop) }));
        };
        RefundOnDrop { permit: Some(self), refund: Some(Box::new(refund)) }
    }
}

impl<S> fmt::Debug for Permit<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Permit");
        out.field("limiter", &self.limiter().name()).field("key", &self.key).field("receipt", &self.receipt);
        out.finish_non_exhaustive()
    }
}

/// A permit that is refunded when it is dropped, unless it is confirmed.
#[must_use = "dropping it refunds the acquire at once"]
pub struct RefundOnDrop<'a, S> {
    permit: Option<Permit<'a, S>>,
    refund: Option<Refund<'a, S>>,
}

type Refund<'a, S> = Box<dyn FnOnce(Permit<'a, S>) + Send + 'a>;

impl<'a, S> RefundOnDrop<'a, S> {
    /// Keeps the charge. Returns the permit, to settle its cost.
    pub fn confirm(mut self) -> Option<Permit<'a, S>> {
        self.permit.take()
    }
}

impl<S> Drop for RefundOnDrop<'_, S> {
    fn drop(&mut self) {
        if let (Some(permit), Some(refund)) = (self.permit.take(), self.refund.take()) {
            refund(permit);
        }
    }
}

impl<S> fmt::Debug for RefundOnDrop<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RefundOnDrop").field(&self.permit).finish()
    }
}
