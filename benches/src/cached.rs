//! The cache of denials as a library.

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, Limiter, WindowStore};
use limiter_memory::MemoryStore;
use limiter_wrappers::DenialCache;

use crate::libraries::{Library, Quota, at_once, policy};

/// This library's cache of denials, around a store that takes a future for every decision.
pub struct Cached(Limiter<DenialCache<Remote>>);

/// A store in memory that never decides at once, like one on a server.
#[derive(Debug)]
pub struct Remote(MemoryStore);

#[async_trait]
impl WindowStore for Remote {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.0.apply(op).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.0.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.0.reset(log).await
    }
}

impl Library for Cached {
    const NAME: &str = "limiter cached denial";

    fn with(quota: Quota) -> Self {
        let cache = DenialCache::new(Remote(MemoryStore::new()), 1_000_000);
        Self(Limiter::new("bench", policy(quota), cache))
    }

    fn allows_n(&self, key: &String, cost: u32) -> bool {
        at_once(self.0.acquire(key).cost(u64::from(cost)))
    }
}
