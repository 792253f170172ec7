//! Several operations as one, behind wrappers: while the store is down, and after a denial.

use std::sync::Arc;

use limiter_core::request::AllOf;
use limiter_core::{Counting, Limiter, SharedStore, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::ReferenceStore;
use limiter_wrappers::{Guarded, Stack};

use crate::script::{Does, bare};

/// A store that applies several operations as one.
type Remote = testbed::Faulty<ReferenceStore>;

async fn used(limiter: &Limiter) -> u64 {
    limiter.status("k").await.unwrap().used()
}

#[tokio::test]
async fn one_call_replaces_the_answer_while_the_store_is_down() {
    type Build = fn(Stack<Remote>) -> Guarded<Remote>;
    for (name, build, expected) in [
        ("open", Stack::fail_open as Build, [true, true]),
        ("closed", Stack::fail_closed, [false, false]),
        (
            "fallback",
            |stack| stack.fallback(MemoryStore::new()),
            [true, false],
        ),
    ] {
        let down = Remote::default();
        down.set(Does::Refuse);
        let store: SharedStore = Arc::new(build(bare(down.clone())));
        let (one, two) = (
            Limiter::new("one", policy!("1/1h"), store.clone()),
            Limiter::new("two", policy!("2/1h"), store),
        );
        for (calls, admits) in (1..).zip(expected) {
            let mut both = AllOf::new().with(two.acquire("k")).with(one.acquire("k"));
            assert_eq!(both.decide().await.unwrap(), admits, "{name}");
            assert_eq!(
                (down.calls_to("apply_all"), down.calls_to("acquire")),
                (calls, 0),
                "{name}"
            );
        }
        if name == "closed" {
            assert!(
                AllOf::new()
                    .with(one.record("k"))
                    .with(two.record("k"))
                    .decide()
                    .await
                    .is_err()
            );
        }
    }
}

#[tokio::test]
async fn a_denial_cache_responds_if_it_knows_all_denials() {
    let remote = Remote::default();
    let store: SharedStore = Arc::new(
        Stack::new(remote.clone())
            .cached_keys(usize::MAX)
            .or_error(),
    );
    let limiter = |name, policy| Limiter::new(name, policy, store.clone());
    let [first, second, third] =
        ["first", "second", "third"].map(|name| limiter(name, policy!("1/1h")));
    let attempts = limiter(
        "attempts",
        policy!("1/1h").with_counting(Counting::Attempts),
    );
    for limiter in [&first, &second, &attempts] {
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
    for (calls, others) in [
        (1, &third),
        (0, &second),
        (1, &third),
        (1, &attempts),
        (1, &attempts),
    ] {
        let before = remote.calls();
        let mut both = AllOf::new()
            .with(others.acquire("k"))
            .with(first.acquire("k"));
        assert!(!both.decide().await.unwrap());
        assert!(both.retry_after().is_some());
        // The first call brings in the denial of each that is not known.
        let most = calls.max(usize::from(others.name() == second.name()));
        assert!(remote.calls() - before <= most, "{both:?}");
    }
    assert_eq!(used(&third).await, 0);
    // A charge is noticed.
    assert!(
        AllOf::new()
            .with(third.acquire("k"))
            .with(limiter("fourth", policy!("9/1h")).acquire("k"))
            .decide()
            .await
            .unwrap()
    );
    assert_eq!(used(&third).await, 1);
}
