//! A guarded store that fails on command, in virtual time: tokio's clock is paused, and the stores read it.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use limiter_core::store::Op;
use limiter_core::{BoxFuture, Clock, ErrorKind, Limiter, Policy, SyncStore, Timestamp, WithClock};
use limiter_memory::MemoryStore;
use limiter_wrappers::{Guarded, GuardedBuilder};
pub(crate) use testbed::Does;
use tokio::time::{Instant, sleep};

/// Tokio's clock, and by how many seconds it is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Virtual(pub(crate) Instant, pub(crate) i64);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let micros = 1_700_000_000_000_000 + self.0.elapsed().as_micros() as u64;
        Timestamp::from_micros_saturating(micros.saturating_add_signed(self.1 * 1_000_000))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

/// A store that fails on command.
pub(crate) type Faulty = testbed::Faulty<MemoryStore>;

/// Returns a stack without guards.
pub(crate) fn bare<S>(store: S) -> GuardedBuilder<S> {
    Guarded::builder(store)
        .timeout(Duration::MAX)
        .failure_threshold(u32::MAX)
        .denial_cache_capacity(0)
}

/// One in virtual time.
pub(crate) type Server = testbed::Faulty<WithClock<MemoryStore, Virtual>>;

/// A limiter `t` on a guarded server.
pub(crate) struct Scene {
    pub(crate) clock: Virtual,
    pub(crate) server: Server,
    pub(crate) limiter: Limiter<Guarded<Server>>,
}

impl Scene {
    pub(crate) fn new(
        policy: &str,
        build: impl FnOnce(GuardedBuilder<Server>) -> Guarded<Server>,
    ) -> Self {
        let clock = Virtual(Instant::now(), 0);
        let server = Server::new(WithClock::new(MemoryStore::new(), clock));
        let policy: Policy = policy.parse().unwrap();
        let limiter = Limiter::new("t", policy, build(bare(server.clone())));
        Self {
            clock,
            server,
            limiter,
        }
    }

    pub(crate) fn store(&self) -> &Guarded<Server> {
        self.limiter.store()
    }

    /// Returns the units that the server counts at a time, including above the maximum.
    pub(crate) fn used_at(&self, key: &str, at: Timestamp) -> u64 {
        let peek = Op::peek(key, self.limiter.policy()).with_name("t".into());
        self.server.store().apply_now(&peek.at(at)).log.usage[0].used
    }

    pub(crate) fn used(&self, key: &str) -> u64 {
        self.used_at(key, self.clock.now())
    }

    /// Makes an acquire a millisecond later. Returns whether it is admitted.
    pub(crate) async fn acquire(&self, key: &str, cost: u64) -> Result<bool, ErrorKind> {
        wait(1).await;
        let decision = self.limiter.acquire(key).cost(cost).await;
        Ok(decision.map_err(|error| error.kind())?.is_allowed())
    }

    /// Makes acquires of these costs.
    pub(crate) async fn acquires(&self, key: &str, costs: &[u64]) -> Vec<Result<bool, ErrorKind>> {
        let mut all = Vec::new();
        for cost in costs {
            all.push(self.acquire(key, *cost).await);
        }
        all
    }

    /// Makes acquires a millisecond apart, which must be admitted without a receipt. Returns how many were not decided at once.
    pub(crate) async fn burst(&self, key: &str, count: u64, cost: u64) -> usize {
        let mut waited = 0;
        for _ in 0..count {
            wait(1).await;
            let mut acquire = pin!(self.limiter.acquire(key).cost(cost).into_future());
            let decision = match poll!(acquire.as_mut()) {
                Poll::Ready(decision) => decision,
                Poll::Pending => {
                    waited += 1;
                    acquire.await
                }
            };
            let decision = decision.unwrap();
            assert!(decision.is_allowed() && decision.receipt().is_none());
        }
        waited
    }
}

pub(crate) async fn wait(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}
