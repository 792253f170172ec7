//! What the recommended stack costs.

use allocation_counter::measure;
use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, Limiter, SyncStore, WindowStore, policy};
use limiter_memory::MemoryStore;
use limiter_wrappers::Stack;

/// A store that answers in a future, with one allocation, as `RedisStore` does.
#[derive(Debug)]
struct Awaited(MemoryStore);

#[async_trait]
impl WindowStore for Awaited {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.0.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.0.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.0.reset_now(log))
    }
}

#[test]
fn a_decision_behind_the_recommended_stack_takes_four_boxed_futures() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let store = Stack::new(Awaited(MemoryStore::new())).fallback(MemoryStore::new());
    let limiter = Limiter::new("search", policy!("1000/1h"), store);
    runtime.block_on(async {
        let mut allocations = u64::MAX;
        for _ in 0..10 {
            let mut acquire = Box::pin(limiter.acquire("customer 7"));
            let allowed = || {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(matches!(acquire.as_mut().poll(&mut context), std::task::Poll::Ready(Ok(d)) if d.allowed()));
            };
            allocations = allocations.min(measure(allowed).count_total);
        }
        // The request's, the fallback's, that of the guards, and the store's.
        assert_eq!(allocations, 4);
    });
}
