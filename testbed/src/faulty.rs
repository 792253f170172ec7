//! A store that fails on command.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, WindowStore};
use limiter_testkit::OracleStore;

/// What a [`Faulty`] store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Does {
    /// Answers.
    Answer,
    /// Fails, because it is away.
    Refuse,
    /// Never answers, and has no effect.
    Hang,
    /// Never answers, and has its effect.
    Silent,
    /// Fails, because a log is corrupt.
    Corrupt,
    /// Returns facts that contradict themselves.
    Contradict,
}

/// A store that answers only through futures, as over a network, and counts its calls.
#[derive(Clone, Debug, Default)]
pub struct Faulty<S = Arc<OracleStore>> {
    store: S,
    does: Arc<AtomicU8>,
    calls: Arc<AtomicU64>,
}

impl<S> Faulty<S> {
    /// Returns a store that answers as `store` does.
    pub fn new(store: S) -> Self {
        Self { store, does: Arc::default(), calls: Arc::default() }
    }

    /// Changes what it does from now on.
    pub fn set(&self, does: Does) {
        self.does.store(does as u8, Ordering::SeqCst);
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn does(&self, does: Does) -> bool {
        self.does.load(Ordering::SeqCst) == does as u8
    }

    /// Is not ready at the first poll.
    async fn answer<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if self.does(Does::Refuse) {
            return Err(Error::new(ErrorKind::Unavailable, "connection refused"));
        }
        if self.does(Does::Corrupt) {
            return Err(Error::new(ErrorKind::Corrupt, "corrupt"));
        }
        if self.does(Does::Hang) {
            return std::future::pending().await;
        }
        let answer = answer.await;
        if self.does(Does::Silent) { std::future::pending().await } else { answer }
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for Faulty<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let mut facts = self.answer(self.store.apply(op)).await?;
        facts.admitted ^= self.does(Does::Contradict);
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.answer(self.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.answer(self.store.reset(log)).await
    }
}
