//! A store that fails on command, and operations of each kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, Limiter, NowStore, WindowStore, policy};
use limiter_memory::MemoryStore;

/// What the store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Does {
    Answer,
    Refuse,
    Hang,
    Corrupt,
    /// Return facts that contradict themselves.
    Contradict,
}

/// A store in memory that answers through futures only, and counts its calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faulty(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    store: MemoryStore,
    does: AtomicU8,
    calls: AtomicU64,
}

impl Faulty {
    pub(crate) fn set(&self, does: Does) {
        self.0.does.store(does as u8, Ordering::SeqCst);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::SeqCst)
    }

    async fn call(&self) -> Result<(), Error> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        match self.0.does.load(Ordering::SeqCst) {
            does if does == Does::Refuse as u8 => Err(Error::new(ErrorKind::Unavailable, "refused")),
            does if does == Does::Hang as u8 => std::future::pending().await,
            does if does == Does::Corrupt as u8 => Err(Error::new(ErrorKind::Corrupt, "corrupt")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl WindowStore for Faulty {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.call().await?;
        let mut facts = self.0.store.apply(op).await?;
        facts.admitted ^= self.0.does.load(Ordering::SeqCst) == Does::Contradict as u8;
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.call().await?;
        self.0.store.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.call().await?;
        self.0.store.reset(log).await
    }
}

/// The key of [`traffic`].
pub(crate) const SECRET: &str = "203.0.113.7";

/// One operation of each kind on `SECRET`, under 5/10s.
pub(crate) fn traffic<S: NowStore>(limiter: &Limiter<S>) {
    for _ in 0..6 {
        let _ = limiter.acquire(SECRET).now().unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let decision = limiter.acquire(SECRET).policy(&gold).now().unwrap();
    let _ = limiter.peek(SECRET).now().unwrap();
    let _ = limiter.status(SECRET).now().unwrap();
    let _ = limiter.record("other").cost(7).now().unwrap();
    let _ = limiter.refund(SECRET, decision.receipt().unwrap()).now();
    limiter.reset(SECRET).now();
    limiter.acquire(SECRET).cost(6).now().unwrap_err();
}
