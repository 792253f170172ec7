//! The options of a guarded store.

use std::sync::Arc;
use std::time::Duration;

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use limiter_core::SyncStore;

use super::blocks::Blocks;
use super::denials::Denials;
use super::local::Local;
use super::nodes::Nodes;
use super::stand_in::StandIn;
use super::{Guarded, Inner};

/// The options of a [`Guarded`] store. The last method determines what calls return during an outage.
///
/// - The timeout is innermost, so that the breaker sees a hanging store as failing.
/// - The denial cache is outside the breaker, so that known denials continue during an outage.
/// - The cache is inside the outage choice, so that a synthetic denial is never cached.
#[derive(Clone, Debug)]
#[must_use = "a final method, such as `fallback`, builds the store"]
pub struct GuardedBuilder<S> {
    store: S,
    timeout: Duration,
    failure_threshold: u32,
    cooldown: Duration,
    denial_cache_capacity: usize,
    denial_ttl: Duration,
    seed: Option<u64>,
}

impl<S> Guarded<S> {
    /// Returns the options of a store around `store`, with their defaults.
    pub const fn builder(store: S) -> GuardedBuilder<S> {
        GuardedBuilder {
            store,
            timeout: Duration::from_millis(300),
            failure_threshold: 5,
            cooldown: Duration::from_secs(1),
            denial_cache_capacity: 100_000,
            denial_ttl: Duration::from_secs(1),
            seed: None,
        }
    }
}

impl<S> GuardedBuilder<S> {
    /// Sets the timeout of a call to the store. Default: 300 ms. [`Duration::MAX`] means no timeout.
    ///
    /// A `RedisStore` has its own timeouts. This one bounds all its attempts together.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of consecutive failures after which the breaker opens. Default: 5. 0 means 1. [`u32::MAX`] means never.
    pub const fn failure_threshold(mut self, failures: u32) -> Self {
        self.failure_threshold = failures;
        self
    }

    /// Sets how long the breaker stays open before each probe. Default: 1 s.
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// Sets the capacities, in logs, of the denial cache and of the blocks of limits with a [lease](limiter_core::Limit::with_lease).
    /// 0 disables both. Default: 100,000.
    ///
    /// A denial may replace another log's before the cache is full. By default, the cache holds about 9,500 of 10,000 denials.
    pub const fn denial_cache_capacity(mut self, keys: usize) -> Self {
        self.denial_cache_capacity = keys;
        self
    }

    /// Sets the maximum age of a cached denial. Default: 1 s.
    ///
    /// If another process unblocks a key, by a reset, a refund or a larger limit, this one may continue to deny it for that
    /// time. With [`Duration::MAX`], it may do so until the next entry of the log expires, which takes days if the window does.
    /// A longer time saves calls only for keys that are denied for longer: with the default, a hammered key costs one call per
    /// second.
    pub const fn denial_ttl(mut self, max_age: Duration) -> Self {
        self.denial_ttl = max_age;
        self
    }

    /// Sets the seed of hashes and ids, for tests that repeat. Default: the operating system's random numbers.
    #[doc(hidden)]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Returns a store that returns errors, for a service that decides by itself.
    #[must_use]
    pub fn or_error(self) -> Guarded<S> {
        self.build(StandIn::Nothing)
    }

    /// Returns a store that admits requests during an outage: it decides as if the log were empty.
    ///
    /// Its calls count nowhere: they have no entry, usage stays 0, and a permit has no [receipt](limiter_core::Permit::receipt). A slot
    /// that is acquired then lasts to the end of its work. A settlement or refund reports that the entry is gone. A renewal returns
    /// the error, so that slots from before the outage survive a short one. So does a reset: an operator must know that it failed.
    #[must_use]
    pub fn fail_open(self) -> Guarded<S> {
        self.build(StandIn::Open)
    }

    /// Returns a store that denies requests during an outage. The retry-after is the breaker's cooldown, or the longest window
    /// if that is shorter.
    ///
    /// A status then shows the limit as exhausted. A record returns the error, because a denial would claim that it counts. So
    /// do a settlement, a refund and a reset.
    #[must_use]
    pub fn fail_closed(self) -> Guarded<S> {
        let retry_after = self.cooldown.max(Duration::from_micros(1));
        self.build(StandIn::Closed(retry_after))
    }

    /// Returns a store that limits in `local` during an outage, and carries the charges over afterwards.
    ///
    /// Each call goes to the primary store first. If that fails as unavailable or timed out, `local` decides. Any other result
    /// is returned.
    ///
    /// # What is carried over
    /// For each log, the cost of its local entries, in cells that span a 32nd of its longest window. Once the primary store
    /// responds, a sweep sends one record per cell, at most 64 logs at a time. No call waits for the sweep. It runs on the
    /// caller's tokio runtime, which needs timers. If that runtime shuts down, the next call restarts the sweep. It stops with
    /// the last clone of the store; call [`flush`](Guarded::flush) first.
    ///
    /// - A cell has the age of its newest entry, by the local store's clock, which must not step. A `MemoryStore`'s is monotonic.
    ///   It never lies in the primary store's future. Operations with a caller's time keep that time.
    /// - A cell is repeated with the same id until the primary store confirms it or it no longer counts. So it counts once,
    ///   even if a reply is lost.
    /// - The record keeps the entries that any limit of the log's operations counts. Cells that affect no limit are dropped, so
    ///   attempts displace no log.
    /// - At most 100,000 logs are carried, which take up to about 130 MB and the keys. [`dropped`](Guarded::dropped) counts the others.
    ///
    /// # What an outage costs
    #[doc = include_str!("costs.md")]
    #[must_use]
    pub fn fallback(self, local: impl SyncStore) -> Guarded<S> {
        let seed = self.seed;
        self.build(StandIn::Local(Local::new(local, seed)))
    }

    fn build(self, stand_in: StandIn) -> Guarded<S> {
        let capacity = self.denial_cache_capacity;
        let seeded = |seed| SeedableRandomState::with_seed(seed, SharedSeed::global_fixed());
        let hasher = self.seed.map_or_else(SeedableRandomState::random, seeded);
        Guarded(Arc::new(Inner {
            store: self.store,
            timeout: self.timeout,
            blocks: Blocks::new(capacity, hasher.clone()),
            denials: Denials::new(capacity, self.denial_ttl, hasher),
            nodes: Nodes::new(self.failure_threshold, self.cooldown),
            stand_in,
        }))
    }
}
