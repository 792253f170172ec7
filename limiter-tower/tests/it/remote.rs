//! A store that needs a future, fails or never answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, SharedStore, WindowStore};

/// How a [`Remote`] store behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(crate) enum Mood {
    Well,
    Failing,
    Hanging,
    /// Applies an operation, then never answers.
    Silent,
    /// Settles nothing until the mood changes.
    Unsettling,
}

/// A store that never answers at once.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    store: SharedStore,
    mood: Arc<AtomicU8>,
    settlements: Arc<AtomicUsize>,
}

impl Remote {
    pub(crate) fn new(store: SharedStore) -> Self {
        Self { store, mood: Arc::default(), settlements: Arc::default() }
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    /// How many settlements were asked for.
    pub(crate) fn settlements(&self) -> usize {
        self.settlements.load(Ordering::SeqCst)
    }

    async fn answer<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::task::yield_now().await;
        let mood = self.mood.load(Ordering::SeqCst);
        if mood == Mood::Failing as u8 {
            return Err(Error::new(ErrorKind::Unavailable, "connection refused"));
        }
        if mood == Mood::Hanging as u8 {
            return std::future::pending().await;
        }
        let answer = answer.await;
        if mood == Mood::Silent as u8 { std::future::pending().await } else { answer }
    }
}

#[async_trait]
impl WindowStore for Remote {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.answer(self.store.apply(op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.settlements.fetch_add(1, Ordering::SeqCst);
        while self.mood.load(Ordering::SeqCst) == Mood::Unsettling as u8 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        self.answer(self.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.answer(self.store.reset(log)).await
    }
}
