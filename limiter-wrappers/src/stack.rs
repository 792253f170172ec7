//! The recommended order of the wrappers.

use std::time::Duration;

use crate::denial_cache::DenialCache;
use crate::outages::{CircuitBreaker, Failsafe, Fallback, Timeout};

/// A store behind a denial cache, a circuit breaker and a timeout.
pub type Guarded<S> = DenialCache<CircuitBreaker<Timeout<S>>>;

/// Builds the recommended stack around a store.
///
/// ```text
/// fail open, fail closed or fallback ─► denial cache ─► circuit breaker ─► timeout ─► store
/// ```
///
/// - The timeout is innermost, so that the breaker sees a hanging store as failing.
/// - The cache is outside the breaker, so that known denials continue during an outage.
/// - It is inside the wrapper that replaces the store's answers, so that a made-up denial is never cached.
#[derive(Clone, Debug)]
#[must_use = "a stack does nothing until one of its last methods makes a store"]
pub struct Stack<S> {
    store: S,
    timeout: Duration,
    failure_threshold: u32,
    cooldown: Duration,
    cached_keys: usize,
    denial_ttl: Duration,
}

impl<S> Stack<S> {
    /// Returns the stack around `store`, with the defaults of each option.
    pub const fn new(store: S) -> Self {
        let (timeout, cooldown) = (Duration::from_millis(300), Duration::from_secs(1));
        Self {
            store,
            timeout,
            failure_threshold: 5,
            cooldown,
            cached_keys: 100_000,
            denial_ttl: Duration::from_secs(1),
        }
    }

    /// Sets how long a call to the store may take. Default: 300 ms.
    ///
    /// A `RedisStore` has timeouts, too. This one bounds all its attempts together.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of consecutive failures after which the breaker opens. Default: 5.
    pub const fn failure_threshold(mut self, failures: u32) -> Self {
        self.failure_threshold = failures;
        self
    }

    /// Sets how long the breaker stays open before each probe. Default: 1 s.
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// Sets the capacity of the denial cache, in logs. 0 disables it. Default: 100,000.
    pub const fn cached_keys(mut self, keys: usize) -> Self {
        self.cached_keys = keys;
        self
    }

    /// Sets how long a denial is cached at most. Default: 1 s.
    ///
    /// A key that another process unblocks may stay denied here for so long; see [`DenialCache::max_age`].
    pub const fn denial_ttl(mut self, max_age: Duration) -> Self {
        self.denial_ttl = max_age;
        self
    }

    /// Returns the store that passes errors on, for a service that decides by itself.
    #[must_use]
    pub fn or_error(self) -> Guarded<S> {
        let breaker =
            CircuitBreaker::new(Timeout::new(self.store, self.timeout), self.failure_threshold, self.cooldown);
        DenialCache::new(breaker, self.cached_keys).max_age(self.denial_ttl)
    }

    /// Returns the store that admits requests during an outage.
    #[must_use]
    pub fn fail_open(self) -> Failsafe<Guarded<S>> {
        Failsafe::open(self.or_error())
    }

    /// Returns the store that limits in `local` during an outage and carries its charges over afterwards.
    #[must_use]
    pub fn fallback<L>(self, local: L) -> Fallback<Guarded<S>, L> {
        Fallback::new(self.or_error(), local)
    }

    /// Returns the store that denies requests during an outage, with a retry-after of the breaker's cooldown.
    #[must_use]
    pub fn fail_closed(self) -> Failsafe<Guarded<S>> {
        let cooldown = self.cooldown;
        Failsafe::closed(self.or_error(), cooldown)
    }
}
