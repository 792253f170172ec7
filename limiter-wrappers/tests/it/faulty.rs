//! A store that fails on command, and operations of each kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Otherwise, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, Limiter, SyncStore, WindowStore, policy};
use limiter_memory::MemoryStore;
pub(crate) use testbed::Does;

pub(crate) type Faulty = testbed::Faulty<MemoryStore>;

/// A faulty store that answers at once while it is told to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    pub(crate) faulty: Faulty,
    pub(crate) at_once: Arc<AtomicBool>,
}

#[async_trait]
impl WindowStore for Prompt {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.faulty.apply(op).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.faulty.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.faulty.reset(log).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        if self.at_once.load(Ordering::SeqCst) { self.faulty.store().try_decide(op, otherwise) } else { otherwise() }
    }
}

/// The key of [`traffic`].
pub(crate) const SECRET: &str = "203.0.113.7";

/// One operation of each kind on `SECRET`, under 5/10s.
pub(crate) fn traffic<S: SyncStore>(limiter: &Limiter<S>) {
    let first = limiter.acquire(SECRET).now().unwrap();
    for _ in 0..5 {
        let _ = limiter.acquire(SECRET).now().unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let _ = limiter.acquire(SECRET).policy(&gold).now().unwrap();
    let _ = limiter.peek(SECRET).now().unwrap();
    let _ = limiter.status(SECRET).now().unwrap();
    let _ = limiter.record("other").cost(7).now().unwrap();
    let _ = limiter.refund(SECRET, first.receipt().unwrap()).now();
    let _ = limiter.reset(SECRET).now();
    limiter.acquire(SECRET).cost(6).now().unwrap_err();
}
