//! Wrappers that claim to be exact do what every store must do, also around one another and over Redis.

use std::time::Duration;

use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use limiter_testkit::conformance::Suite;
use limiter_testkit::conformance_tests;
use limiter_testkit::server::Server;
use limiter_wrappers::Stack;
use limiter_wrappers::observe::{Metrics, ObservedStore};

/// No call may come near it on a busy machine.
const LONG: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> RedisStore {
    RedisStore::builder().connect_timeout(LONG).response_timeout(LONG).connect(url).await.unwrap()
}

fn stack() -> Stack<MemoryStore> {
    Stack::new(MemoryStore::new()).timeout(LONG).failure_threshold(1).cooldown(LONG)
}

conformance_tests!(a_stack, stack().or_error(), suite = Suite::slow(), runtime = tokio);
conformance_tests!(fail_open, stack().fail_open(), suite = Suite::shared(), runtime = tokio);
conformance_tests!(fail_closed, stack().fail_closed(), suite = Suite::shared(), runtime = tokio);
conformance_tests!(a_fallback, stack().fallback(MemoryStore::new()), suite = Suite::slow(), runtime = tokio);
conformance_tests!(
    an_observed_store,
    ObservedStore::new(MemoryStore::new(), Metrics::new("default")),
    suite = Suite::slow(),
    runtime = tokio,
);
// Without a cache: the time of a cached denial may lag behind the server's by the round trip that brought it, and the suite
// bounds the server's clock more tightly.
conformance_tests!(
    the_stack_over_redis,
    Stack::new(connect(&server.url()).await).timeout(LONG).cached_keys(0).fail_open(),
    with server = Server::start().unwrap(),
    suite = Suite::shared(),
    runtime = tokio,
);
