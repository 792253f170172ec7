//! Wrappers that claim to be exact do what every store must do, including around one another and on Redis.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::WithClock;
use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use limiter_testkit::conformance::{Phase, Suite};
use limiter_testkit::{MockClock, ReferenceStore, conformance_tests};
use limiter_wrappers::observe::ObservedStore;
use limiter_wrappers::{Guarded, GuardedBuilder};
use testbed::Faulty;
use testbed::server::Server;

use crate::script::{Does, bare};

/// No call may come near it on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn stack() -> GuardedBuilder<MemoryStore> {
    Guarded::builder(MemoryStore::new())
        .timeout(LONG)
        .failure_threshold(1)
        .cooldown(LONG)
}

conformance_tests!(a_stack, tokio, Suite::slow(), async |suite| suite
    .run(Arc::new(stack().or_error()))
    .await);
conformance_tests!(fail_open, tokio, Suite::shared(), async |suite| suite
    .run(Arc::new(stack().fail_open()))
    .await);
conformance_tests!(fail_closed, tokio, Suite::shared(), async |suite| suite
    .run(Arc::new(stack().fail_closed()))
    .await);
conformance_tests!(a_fallback, tokio, Suite::slow(), async |suite| {
    suite
        .run(Arc::new(stack().fallback(MemoryStore::new())))
        .await
});
conformance_tests!(an_observed_store, tokio, Suite::slow(), async |suite| {
    suite
        .run(Arc::new(ObservedStore::new(MemoryStore::new(), "default")))
        .await
});
// Without a cache: the time of a cached denial may lag behind the server's by the round trip that brought it, and the suite
// bounds the server's clock more tightly.
conformance_tests!(
    the_stack_over_redis,
    tokio,
    Suite::shared(),
    async |suite| {
        let server = Server::start().unwrap();
        let redis = RedisStore::builder()
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .connect(&server.url())
            .await
            .unwrap();
        suite
            .run(Arc::new(
                Guarded::builder(redis)
                    .timeout(LONG)
                    .denial_cache_capacity(0)
                    .fail_open(),
            ))
            .await
    }
);

/// A reset is the primary store's. The local clock stands still, because the fallback reads it for each operation.
#[tokio::test]
async fn a_fallback_in_an_outage_applies_several_operations_as_one() {
    let primary = Faulty::<ReferenceStore>::default();
    primary.rule(|verb, _| {
        if verb == "reset" {
            Does::Answer
        } else {
            Does::Refuse
        }
    });
    let local = WithClock::new(MemoryStore::new(), MockClock::new());
    let suite = Suite::new()
        .phases(&[Phase::Several])
        .spawn(|task| Box::pin(async { _ = tokio::spawn(task).await }));
    let checked = suite.run(Arc::new(bare(primary).fallback(local))).await;
    assert!(checked.is_ok(), "{}", checked.unwrap_err());
}
