//! Acquire, peek, record and status.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::call::Call;
use super::verb::{self, Acquire, Costs, Verb};
use super::wait;
use crate::clock::BoxFuture;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::op::{At, EntryId};
use crate::policy::Policy;
use crate::status::Status;
use crate::store::{NowStore, WindowStore};
use crate::time::Timestamp;

/// One call of a limiter's verb, with its options: a builder that is also a future.
///
/// `.await` it, or on a store that answers at once call [`now`](Self::now).
///
/// # Errors
/// The future and [`now`](Self::now) return [`InvalidCost`](crate::ErrorKind::InvalidCost) for a cost of 0 and
/// [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) for an acquire or a peek that could never fit. The future also
/// returns whatever keeps the store from answering, and [`Inconsistent`](crate::ErrorKind::Inconsistent) if the store
/// contradicts itself.
///
/// # Cancel safety
/// See [`Limiter`]. A future dropped while it waits [`within`](Self::within) a time has consumed nothing, unless the policy
/// counts attempts.
#[must_use = "a request does nothing until it is awaited, or `now` is called"]
pub struct Request<'a, S, B, V> {
    call: Call<'a, S, B>,
    /// The decision of a store that needs time for it.
    running: Option<BoxFuture<'a, Result<Decision, Error>>>,
    verb: PhantomData<V>,
}

impl<S> Limiter<S> {
    /// Takes one unit, or as many as [`cost`](Request::cost) says, if they fit.
    #[inline(always)]
    pub fn acquire<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Acquire> {
        Request::new(self, key.to_key())
    }

    /// Asks whether one unit, or as many as [`cost`](Request::cost) says, would fit. It consumes nothing.
    #[inline(always)]
    pub fn peek<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Peek> {
        Request::new(self, key.to_key())
    }

    /// Counts one unit, or as many as [`cost`](Request::cost) says, whether they fit or not: metering.
    #[inline(always)]
    pub fn record<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Record> {
        Request::new(self, key.to_key())
    }

    /// Reads how much is used. Unlike [`peek`](Self::peek) it does not ask whether more would fit, so a key that has used
    /// up its limit is no denial.
    #[inline(always)]
    pub fn status<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Status> {
        Request::new(self, key.to_key())
    }
}

impl<'a, S, B, V: Verb> Request<'a, S, B, V> {
    #[inline(always)]
    pub(crate) fn new(limiter: &'a Limiter<S>, key: B) -> Self {
        Self { call: Call::new(limiter, key, V::MODE), running: None, verb: PhantomData }
    }

    /// Uses this policy for the call instead of the limiter's default: for a gold customer, say.
    ///
    /// The log is that of the limiter all the same. What the call appends counts under the default policy too, and no
    /// history that the default policy can see is erased.
    #[inline(always)]
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.call.policy = Some(policy);
        self
    }

    /// Makes the call at a time of the caller's. Default: the store's clock.
    ///
    /// For tests and replays, and for logs that record when something happened. Do not mix given times and the store's
    /// clock on one key unless both run in step.
    #[inline(always)]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.call.at = At::Given(at);
        self
    }
}

impl<S, B, V: Costs> Request<'_, S, B, V> {
    /// Sets how many units the call takes, all or nothing. Default: 1.
    #[inline(always)]
    pub fn cost(mut self, cost: u64) -> Self {
        self.call.cost = cost;
        self
    }

    /// Sets an idempotency key, 128 bits of the caller's choice (a UUID, say), so that the call counts once however often
    /// it is repeated. Default: none. A peek ignores it.
    ///
    /// While the log keeps the entry, repeating the call appends nothing and returns the original verdict with the current
    /// usage. A denied acquire that appended nothing leaves no id behind; repeating it is a new
    /// attempt.
    #[inline(always)]
    pub fn id(mut self, id: impl Into<EntryId>) -> Self {
        self.call.id = Some(id.into());
        self
    }

    /// Makes the call on a store that answers at once, without a future.
    ///
    /// # Errors
    /// [`InvalidCost`](crate::ErrorKind::InvalidCost) and [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit). A call
    /// of cost 1 cannot fail.
    #[inline(always)]
    pub fn now(self) -> Result<Decision, Error>
    where
        S: NowStore,
        B: AsRef<[u8]>,
    {
        let Self { call, running, .. } = self;
        // Nothing runs. To drop it would keep the whole request in memory instead of in registers.
        mem::forget(running);
        match call.within {
            None => call.limiter.store.decide_now(call.op()),
            Some(within) => wait::blocking(call, within),
        }
    }
}

impl<S: WindowStore, B: AsRef<[u8]>, V: Costs> Request<'_, S, B, V> {
    /// Makes the call if the store answers at once; `None`, without any effect, if it needs a future. [`within`](Self::within)
    /// is ignored.
    ///
    /// For middleware over any store that wants to save a future where it can.
    #[inline]
    pub fn at_once(&self) -> Option<Result<Decision, Error>> {
        self.call.limiter.store.decide_at_once(self.call.op())
    }
}

impl<S, B> Request<'_, S, B, verb::Status> {
    /// Reads the usage on a store that answers at once, without a future.
    ///
    /// # Errors
    /// None: reading cannot fail. A `Result` as for every other verb.
    #[inline]
    pub fn now(self) -> Result<Status, Error>
    where
        S: NowStore,
        B: AsRef<[u8]>,
    {
        self.call.limiter.store.decide_now(self.call.op()).map(Decision::into_status)
    }
}

impl<'a, S, B> Request<'a, S, B, Acquire> {
    /// Waits until the acquire fits, but for at most `wait`. Default: no waiting.
    ///
    /// A denial waits exactly its [`retry_after`](Decision::retry_after) and tries again. The decision is a denial if the
    /// acquire cannot fit in time; that is known, and returned, without waiting. Concurrent waiters are served in no
    /// particular order. If the policy counts attempts, each try counts.
    ///
    /// The future sleeps on the limiter's [timer](Limiter::with_timer), and returns
    /// [`Configuration`](crate::ErrorKind::Configuration) if it has to wait and there is none; [`now`](Self::now) blocks the
    /// thread. A call with a [given time](Self::at) is tried once, because its time stands still.
    #[inline(always)]
    pub fn within(mut self, wait: Duration) -> Self {
        self.call.within = Some(wait);
        self
    }

    pub(super) fn call(&self) -> &Call<'a, S, B> {
        &self.call
    }
}

impl<'a, S, B, V> Future for Request<'a, S, B, V>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
    V: Costs,
{
    type Output = Result<Decision, Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, running, .. } = &mut *self;
        match running {
            None if call.within.is_none() => {
                call.limiter.store.poll_decision(call.op(), || poll_boxed(call, running, context))
            }
            _ => poll_boxed(call, running, context),
        }
    }
}

impl<'a, S, B> Future for Request<'a, S, B, verb::Status>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<Status, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, running, .. } = &mut *self;
        if running.is_none()
            && let Some(decision) = call.limiter.store.decide_at_once(call.op())
        {
            return Poll::Ready(decision.map(Decision::into_status));
        }
        poll_boxed(call, running, context).map(|decision| decision.map(Decision::into_status))
    }
}

/// Goes on with a call on a store that needs time, or starts it.
fn poll_boxed<'a, S, B>(
    call: &Call<'a, S, B>,
    running: &mut Option<BoxFuture<'a, Result<Decision, Error>>>,
    context: &mut Context<'_>,
) -> Poll<Result<Decision, Error>>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + 'a,
{
    let start = || -> BoxFuture<'a, _> {
        let call = call.clone();
        match call.within {
            Some(within) => Box::pin(async move { wait::sleeping(&call, within).await }),
            None => Box::pin(async move { call.decide().await }),
        }
    };
    running.get_or_insert_with(start).as_mut().poll(context)
}

impl<S, B, V: Verb> fmt::Debug for Request<'_, S, B, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { limiter, mode, cost, at, .. } = &self.call;
        let mut out = f.debug_struct("Request");
        out.field("limiter", &limiter.name()).field("mode", mode).field("cost", cost).field("at", at);
        out.finish_non_exhaustive()
    }
}
