//! An acquire, peek, record or status call with its options.

use std::fmt;
use std::task::{Context, Poll};

use crate::decision::{Decision, decide};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::store::clock::BoxFuture;
use crate::store::op::{At, EntryId, Hints, Mode, Op};
use crate::store::{SyncStore, WindowStore};

/// The boxed future of a call, once there is one.
pub(super) type Running<'a> = Option<BoxFuture<'a, Result<Decision, Error>>>;

/// A call that has not been made yet.
pub(super) struct Call<'a, S, B> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) key: B,
    pub(super) policy: Option<&'a Policy>,
    pub(super) mode: Mode,
    pub(super) cost: u64,
    pub(super) at: At,
    pub(super) id: Option<EntryId>,
    pub(super) hints: Hints,
}

/// Never prints the key.
impl<S, B> fmt::Debug for Call<'_, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Call");
        out.field("limiter", &self.limiter.name())
            .field("mode", &self.mode)
            .field("cost", &self.cost)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl<S, B: Clone> Clone for Call<'_, S, B> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            ..*self
        }
    }
}

impl<'a, S, B> Call<'a, S, B> {
    #[inline(always)]
    pub(super) fn new(limiter: &'a Limiter<S>, key: B, mode: Mode) -> Self {
        Self {
            limiter,
            key,
            policy: None,
            mode,
            cost: 1,
            at: At::StoreClock,
            id: None,
            hints: Hints::default(),
        }
    }
}

impl<S, B: AsRef<[u8]>> Call<'_, S, B> {
    #[inline(always)]
    pub(super) fn op(&self) -> Op<'_> {
        let default = self.limiter.policy();
        Op {
            log: self.limiter.log(&self.key),
            policy: self.policy.unwrap_or(default),
            limiter_policy: self.policy.map(|_| default),
            cost: self.cost,
            mode: self.mode,
            at: self.at,
            id: self.id,
            hints: self.hints,
        }
    }

    /// Makes the call on a synchronous store.
    #[inline(always)]
    pub(super) fn now(&self) -> Result<Decision, Error>
    where
        S: SyncStore,
    {
        self.limiter.store.decide_now(self.op())
    }

    /// Makes the call, and awaits the store only if it cannot decide without waiting.
    pub(super) async fn decide(&self) -> Result<Decision, Error>
    where
        S: WindowStore,
    {
        self.limiter.decide(self.op()).await
    }
}

impl<S: WindowStore> Limiter<S> {
    /// Decides an operation, and awaits the store only if it cannot decide without waiting.
    pub(super) async fn decide(&self, op: Op<'_>) -> Result<Decision, Error> {
        match self.store.try_decide(op) {
            Some(decision) => decision,
            None => self.apply(op).await,
        }
    }

    /// Decides an operation after [`WindowStore::try_decide`] could not.
    pub(super) async fn apply(&self, op: Op<'_>) -> Result<Decision, Error> {
        let op = op.checked()?;
        let facts = self.store.apply(op).await?;
        facts.verify(&op)?;
        Ok(decide(&op, facts))
    }
}

impl<'a, S, B: Clone> Call<'a, S, B> {
    /// Polls the call. The first poll tries to decide without a boxed future.
    #[inline(always)]
    pub(super) fn poll(
        &self,
        running: &mut Running<'a>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>>
    where
        S: WindowStore,
        B: AsRef<[u8]> + Send + Sync + 'a,
    {
        if running.is_none()
            && let Some(decision) = self.limiter.store.try_decide(self.op())
        {
            return Poll::Ready(decision);
        }
        let start = || -> BoxFuture<'a, _> {
            let call = self.clone();
            Box::pin(async move { call.limiter.apply(call.op()).await })
        };
        running.get_or_insert_with(start).as_mut().poll(context)
    }
}
