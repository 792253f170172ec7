//! A store that answers as one over a network does, or as a wrapper does.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, SyncStore, WindowStore};
use limiter_testkit::ReferenceStore;

#[derive(Debug, Default)]
pub(crate) struct SlowStore {
    pub(crate) reference: Arc<ReferenceStore>,
    pub(crate) calls: AtomicU64,
    /// How often its identity was read.
    pub(crate) identities: AtomicU64,
    /// Whether it decides without a future.
    pub(crate) tries: bool,
    /// How often an operation and a settlement return `Pending`. Default: once.
    pub(crate) waits: Option<[u32; 2]>,
    pub(crate) fails: bool,
    /// Whether it applies several operations as one.
    pub(crate) joins: bool,
}

impl SlowStore {
    /// Waits for an operation (0) or a settlement (1), then counts the call.
    async fn wait(&self, kind: usize) -> Result<(), Error> {
        let mut left = 0..self.waits.unwrap_or([1, 1])[kind];
        poll_fn(|context| {
            context.waker().wake_by_ref();
            left.next().map_or(Poll::Ready(()), |_| Poll::Pending)
        })
        .await;
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.fails {
            Err(Error::new(ErrorKind::Unavailable, "connection refused"))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl WindowStore for SlowStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.wait(0).await?;
        Ok(self.reference.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.wait(1).await?;
        Ok(self.reference.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.wait(1).await?;
        Ok(self.reference.reset_now(log))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        if !self.joins {
            return Ok(None);
        }
        self.wait(0).await?;
        self.reference.apply_all(ops).await
    }

    fn identity(&self) -> Option<usize> {
        self.identities.fetch_add(1, Ordering::Relaxed);
        self.joins.then_some(std::ptr::from_ref(self).addr())
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        self.tries.then(|| self.reference.decide_now(op))
    }
}
