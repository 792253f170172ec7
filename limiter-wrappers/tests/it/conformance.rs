//! Wrappers that claim to be exact do what every store must do, including around one another and on Redis.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{WindowStore, policy};
use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use limiter_testkit::conformance::{Case, Suite, Verb, replay};
use limiter_testkit::strategy::joint_cases;
use limiter_testkit::{ReferenceStore, conformance_tests};
use limiter_wrappers::observe::ObservedStore;
use limiter_wrappers::{Guarded, GuardedBuilder};
use proptest::prelude::*;
use testbed::Faulty;
use testbed::server::Server;
use tokio::runtime::Runtime;

use crate::scene::{Does, bare};

/// No call may come near it on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn stack() -> GuardedBuilder<MemoryStore> {
    Guarded::builder(MemoryStore::new())
        .timeout(LONG)
        .failure_threshold(1)
        .cooldown(LONG)
}

conformance_tests!(a_stack, Suite::slow(), async |suite| suite
    .beside(Arc::new(stack().or_error()))
    .run(Arc::new(stack().or_error()))
    .await);
conformance_tests!(fail_open, Suite::shared(), async |suite| suite
    .run(Arc::new(stack().fail_open()))
    .await);
conformance_tests!(fail_closed, Suite::shared(), async |suite| suite
    .run(Arc::new(stack().fail_closed()))
    .await);
conformance_tests!(a_fallback, Suite::slow(), async |suite| {
    suite
        .run(Arc::new(stack().fallback(MemoryStore::new())))
        .await
});
conformance_tests!(an_observed_store, Suite::slow(), async |suite| {
    suite
        .run(Arc::new(ObservedStore::new(MemoryStore::new(), "default")))
        .await
});
// Without a cache: the time of a cached denial may lag behind the server's by the round trip that brought it, and the suite
// bounds the server's clock more tightly.
conformance_tests!(the_stack_over_redis, Suite::shared(), async |suite| {
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
});

/// Several operations on the local store. A settlement of an entry that is gone asks the primary store, so there is none. A reset
/// returns whether the primary store held a log: it does, because only the answers are lost.
async fn in_an_outage(mut case: Case) -> Result<(), String> {
    let primary = Faulty::<ReferenceStore>::default();
    primary.rule(|verb, _| match verb {
        "reset" => Does::Answer,
        _ => Does::LoseAnswer,
    });
    let store = Arc::new(bare(primary).fallback(MemoryStore::new()));
    let policy = policy!("9/1h");
    let both = ["first", "second"].map(|key| Op::acquire(key, &policy).into());
    let made = store
        .apply_all(&both)
        .await
        .map_err(|error| error.to_string())?;
    assert!(made.is_some(), "the operations are not applied as one");
    case.steps.retain(|step| matches!(step.verb, Verb::Run(_)));
    let compared = replay(&store, &case, |key| vec![key]).await;
    compared.map_err(|mismatch| mismatch.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_fallback_in_an_outage_applies_several_operations_as_one(case in joint_cases(1..=24)) {
        let compared = Runtime::new().unwrap().block_on(in_an_outage(case));
        prop_assert!(compared.is_ok(), "{}", compared.unwrap_err());
    }
}
