//! The builder for acquire, peek, record and status.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::call::{Call, Running};
use super::output::Output;
use super::verb::{self, Acquires, Costs, Verb};
use super::wait;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::time::Timestamp;
use crate::store::clock::BoxFuture;
use crate::store::op::{At, IdempotencyKey};
use crate::store::{SyncStore, WindowStore};

/// An acquire, peek, record or status call with its options: a builder that is also a future.
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`Decision`](crate::Decision), for a status a
/// [`Status`](crate::Status), and after [`permit`](Self::permit) a [`PermitDecision`](crate::request::PermitDecision).
///
/// # Errors
/// The future and [`now`](Self::now) return:
/// - [`InvalidCost`](crate::ErrorKind::InvalidCost) if the cost is 0;
/// - [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) if an acquire or a peek can never fit;
/// - [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit) if a call with a permit or an idempotency key has a policy without an exact limit.
///
/// The future also returns the store's errors, and [`Inconsistent`](crate::ErrorKind::Inconsistent) if the store's facts
/// contradict each other.
///
/// # Cancel safety
/// See [`Limiter`]. A future dropped while it sleeps in [`within`](Self::within) has consumed no unit, unless the policy
/// counts attempts.
#[must_use = "a request does nothing until it is awaited, or `now` is called"]
pub struct Request<'a, S, B, V, const MAY_WAIT: bool = false> {
    call: Call<'a, S, B>,
    /// The store's boxed future, once the first poll has started it.
    running: Running<'a>,
    verb: PhantomData<V>,
}

impl<S> Limiter<S> {
    /// Takes one unit, or [`cost`](Request::cost) units, if they fit.
    #[inline(always)]
    pub fn acquire<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Acquire> {
        Request::new(self, key.to_key())
    }

    /// Checks whether one unit, or [`cost`](Request::cost) units, would fit. Consumes nothing.
    #[inline(always)]
    pub fn peek<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Peek> {
        Request::new(self, key.to_key())
    }

    /// Records one unit, or [`cost`](Request::cost) units, whether or not they fit. Use it to meter usage.
    ///
    /// A record that does not fit has no [receipt](crate::Decision::receipt), so it can be neither settled nor refunded. To correct records
    /// later, meter with a maximum that usage never reaches, such as [`MAX_COST`](crate::MAX_COST).
    #[inline(always)]
    pub fn record<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Record> {
        Request::new(self, key.to_key())
    }

    /// Reads the usage. Consumes nothing.
    ///
    /// Unlike [`peek`](Self::peek), it does not check whether more would fit, so its result is never a denial.
    #[inline(always)]
    pub fn status<K: Key>(&self, key: K) -> Request<'_, S, K::Bytes, verb::Status> {
        Request::new(self, key.to_key())
    }
}

impl<'a, S, B, V: Verb> Request<'a, S, B, V> {
    #[inline(always)]
    fn new(limiter: &'a Limiter<S>, key: B) -> Self {
        let mut call = Call::new(limiter, key, V::MODE);
        call.hints.is_status = V::IS_STATUS;
        Self {
            call,
            running: None,
            verb: PhantomData,
        }
    }
}

impl<'a, S, B, V: Verb, const MAY_WAIT: bool> Request<'a, S, B, V, MAY_WAIT> {
    /// Sets the policy for this call, for example a gold customer's. Default: the limiter's policy.
    ///
    /// The call uses the same log. Its entry also counts in the limiter's default policy, and it never erases an entry that the
    /// default policy still counts.
    #[inline(always)]
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.call.policy = Some(policy);
        self
    }

    /// Sets a caller-supplied time for the call. Default: the store's clock.
    ///
    /// Use it for tests and replays, or to record when an event happened. Do not mix caller-supplied times and the store's
    /// clock on one key unless the two clocks agree.
    #[inline(always)]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.call.at = At::Given(at);
        self
    }
}

impl<S, B, V: Costs, const MAY_WAIT: bool> Request<'_, S, B, V, MAY_WAIT> {
    /// Sets the cost in units, which fit all together or not at all. Default: 1.
    ///
    /// An acquire or a peek accepts 1 to the policy's smallest maximum. A record accepts any cost of at least 1.
    #[inline(always)]
    pub fn cost(mut self, cost: u64) -> Self {
        self.call.cost = cost;
        self
    }

    /// Sets an idempotency key of 128 bits, such as a UUID. Repeating the call with the same key counts once. Default: none.
    ///
    /// While an exact limit counts the entry, a repetition does not append. If every limit has a
    /// [resolution](crate::Limit::resolution), the call fails with [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit). A repetition
    /// returns the original verdict with the current usage. A denied acquire that did not count leaves
    /// no id behind, so repeating it is a new attempt. A peek ignores the key.
    #[inline(always)]
    pub fn idempotency_key(mut self, key: impl Into<IdempotencyKey>) -> Self {
        self.call.id = Some(key.into().0);
        self
    }
}

impl<'a, S, B: AsRef<[u8]>, V: Verb> Request<'a, S, B, V> {
    /// Makes the call on a synchronous store, without a future.
    ///
    /// # Errors
    /// [`InvalidCost`](crate::ErrorKind::InvalidCost) or [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit). A call
    /// with a cost of 1 never fails.
    #[inline(always)]
    pub fn now(self) -> Result<V::Output<'a, S>, Error>
    where
        S: SyncStore,
    {
        let Self { call, running, .. } = self;
        if V::NEEDS_RECEIPT {
            call.op().check_receipts()?;
        }
        // Always `None` here. Dropping it would force the whole request out of registers.
        mem::forget(running);
        V::Output::now(&call)
    }
}

impl<'a, S, B, V: Acquires> Request<'a, S, B, V> {
    /// Waits until the acquire fits, for at most `wait`. Default: no waiting.
    ///
    /// After a denial, the call waits exactly [`retry_after`](crate::Decision::retry_after) and tries again. If the acquire cannot fit in
    /// time, the denial is returned immediately. Concurrent waiters are served in no particular order. If the policy counts attempts, every try counts. A call
    /// with a [caller-supplied time](Self::at) is tried once.
    ///
    /// The future sleeps by the [clock](crate::Clock) in front of the store, otherwise on tokio's timers.
    ///
    /// # Errors
    /// Without either, the future returns [`Configuration`](crate::ErrorKind::Configuration) at the first poll, even if the acquire
    /// would fit. A wait of zero and a call with a caller-supplied time need neither.
    #[inline(always)]
    pub fn within(self, wait: Duration) -> Request<'a, S, B, V, true> {
        let Self { call, running, .. } = self;
        Request {
            call: Call {
                within: wait,
                ..call
            },
            running,
            verb: PhantomData,
        }
    }
}

impl<'a, S, B, const MAY_WAIT: bool> Request<'a, S, B, verb::Acquire, MAY_WAIT> {
    /// Returns a [`PermitDecision`](crate::request::PermitDecision) instead of a decision: an acquire that can be settled or refunded
    /// if it is admitted. If every limit has a [resolution](crate::Limit::resolution), the request fails with
    /// [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit).
    pub fn permit(self) -> Request<'a, S, B, verb::Permit, MAY_WAIT> {
        let Self {
            mut call, running, ..
        } = self;
        call.hints.wants_receipt = true;
        Request {
            call,
            running,
            verb: PhantomData,
        }
    }
}

impl<'a, S, B, V> Request<'a, S, B, V> {
    pub(super) fn call(&self) -> &Call<'a, S, B> {
        &self.call
    }
}

impl<'a, S, B, V, const MAY_WAIT: bool> Future for Request<'a, S, B, V, MAY_WAIT>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
    V: Verb,
{
    type Output = Result<V::Output<'a, S>, Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, running, .. } = &mut *self;
        if V::NEEDS_RECEIPT
            && let Err(error) = call.op().check_receipts()
        {
            return Poll::Ready(Err(error));
        }
        if MAY_WAIT {
            let start =
                |call| -> BoxFuture<'a, _> { Box::pin(async move { wait::sleeping(&call).await }) };
            return call
                .poll_boxed(running, context, start)
                .map(|decision| V::Output::of(call, decision));
        }
        V::Output::poll(call, running, context)
    }
}

impl<S, B, V, const MAY_WAIT: bool> fmt::Debug for Request<'_, S, B, V, MAY_WAIT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.call).finish()
    }
}
