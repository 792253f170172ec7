//! A store that cannot answer synchronously, like one over a network.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, NowStore, WindowStore};
use limiter_testkit::OracleStore;

#[derive(Debug, Default)]
pub(crate) struct SlowStore {
    oracle: OracleStore,
    pub(crate) calls: AtomicU64,
}

impl SlowStore {
    /// Returns `Pending` once, then counts the call.
    async fn wait(&self) {
        let mut waited = false;
        poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl WindowStore for SlowStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.wait().await;
        Ok(self.oracle.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.wait().await;
        Ok(self.oracle.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.wait().await;
        Ok(self.oracle.reset_now(log))
    }
}
