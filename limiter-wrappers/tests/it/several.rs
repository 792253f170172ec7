//! Several operations as one, behind wrappers: while the store is down, and after a denial.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::request::AllOf;
use limiter_core::store::{Facts, JointOp, Op, Outcome};
use limiter_core::{
    BoxFuture, Clock, Counting, Limit, Limiter, Policy, SharedStore, Timestamp, WindowStore,
    WithClock, policy,
};
use limiter_memory::MemoryStore;
use limiter_testkit::ReferenceStore;
use limiter_wrappers::{Guarded, GuardedBuilder};

use crate::script::{Does, bare};

/// A store that applies several operations as one.
type Remote = testbed::Faulty<ReferenceStore>;

async fn used(limiter: &Limiter) -> u64 {
    limiter.status("k").await.unwrap().used()
}

/// Advances by a second with each reading.
#[derive(Debug, Default)]
struct Advancing(AtomicU64);

impl Clock for Advancing {
    fn now(&self) -> Timestamp {
        let seconds = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp::from_micros_saturating((1 << 50) + seconds * 1_000_000)
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_fallback_decides_at_one_reading_of_its_clock() {
    let down = Remote::default();
    down.set(Does::Refuse);
    let local = WithClock::new(MemoryStore::new(), Advancing::default());
    let store = bare(down).fallback(local);
    for seconds in 1..8 {
        let limit = Limit::new(1, Duration::from_secs(seconds)).unwrap();
        let attempts = Policy::from(limit).with_counting(Counting::Attempts);
        let key = seconds.to_string();
        let plenty = policy!("99/1h");
        for call in 0..5 {
            let ops =
                [Op::acquire(&key, &attempts), Op::acquire("other", &plenty)].map(JointOp::from);
            let all = store.apply_all(&ops).await.unwrap();
            let facts: Vec<Facts> = all.unwrap().into_iter().map(Result::unwrap).collect();
            let appended = matches!(facts[1].outcome, Outcome::Appended(_));
            assert_eq!(
                facts[0].admitted, appended,
                "call {call} with a window of {seconds} s"
            );
        }
    }
}

#[tokio::test]
async fn one_call_replaces_the_answer_while_the_store_is_down() {
    type Build = fn(GuardedBuilder<Remote>) -> Guarded<Remote>;
    for (name, build, expected) in [
        ("open", GuardedBuilder::fail_open as Build, [true, true]),
        ("closed", GuardedBuilder::fail_closed, [false, false]),
        (
            "fallback",
            |stack| stack.fallback(MemoryStore::new()),
            [true, false],
        ),
    ] {
        let down = Remote::default();
        down.set(Does::Refuse);
        let store: SharedStore = Arc::new(build(bare(down.clone())));
        let one = Limiter::new("one", policy!("1/1h"), store.clone());
        let two = Limiter::new("two", policy!("2/1h"), store);
        for (calls, admits) in (1..).zip(expected) {
            let both = AllOf::new().with(two.acquire("k")).with(one.acquire("k"));
            assert_eq!(!both.await.unwrap().is_denied(), admits, "{name}");
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
        Guarded::builder(remote.clone())
            .denial_cache_capacity(usize::MAX)
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
        assert!(limiter.acquire("k").await.unwrap().is_allowed());
    }
    for (calls, others) in [
        (1, &third),
        (0, &second),
        (1, &third),
        (1, &attempts),
        (1, &attempts),
    ] {
        let before = remote.calls();
        let both = AllOf::new()
            .with(others.acquire("k"))
            .with(first.acquire("k"))
            .await
            .unwrap();
        assert!(both.retry_after().is_some());
        // The first call brings in the denial of each that is not known.
        let most = calls.max(usize::from(others.name() == second.name()));
        assert!(remote.calls() - before <= most, "{both:?}");
    }
    assert_eq!(used(&third).await, 0);
    // A charge is noticed.
    assert!(
        !AllOf::new()
            .with(third.acquire("k"))
            .with(limiter("fourth", policy!("9/1h")).acquire("k"))
            .await
            .unwrap()
            .is_denied()
    );
    assert_eq!(used(&third).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_decides_no_other_log_and_recovers_by_joint_calls_alone() {
    let remote = Remote::default();
    remote.rule(|verb, log| match verb {
        "apply_all" => Does::Separate,
        _ if log.key.ends_with(b"@down") => Does::Refuse,
        _ => Does::Answer,
    });
    let stack = Guarded::builder(remote.clone()).failure_threshold(1);
    let stack = stack.fail_open();
    let limiter = Limiter::new("n", policy!("1/1h"), Arc::new(stack.clone()));
    let both = async |first, second| {
        let both = AllOf::new()
            .with(limiter.acquire(first))
            .with(limiter.acquire(second));
        !both.await.unwrap().is_denied()
    };
    assert!(both("1@down", "2@up").await && stack.in_outage());
    assert!(
        !both("1@down", "2@up").await,
        "the healthy node has decided"
    );
    remote.set(Does::Separate);
    for keys in [["3@down", "4@down"], ["5@down", "6@down"]] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(stack.in_outage() && both(keys[0], keys[1]).await);
    }
    assert!(!stack.in_outage(), "the store has responded for a second");
}
