//! Several operations as one, behind wrappers, while the store is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::request::AllOf;
use limiter_core::store::{JointOp, Op, Outcome};
use limiter_core::{
    BoxFuture, Clock, Counting, Limiter, Policy, Timestamp, WindowStore, WithClock, policy,
};
use limiter_memory::MemoryStore;
use limiter_testkit::ReferenceStore;
use limiter_wrappers::Guarded;
use tokio::time::sleep;

use crate::scene::{Does, Faulty, bare};

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
    let down = Faulty::default();
    down.set(Does::Refuse);
    let local = WithClock::new(MemoryStore::new(), Advancing::default());
    let store = bare(down).fallback(local);
    for seconds in 1..8 {
        let attempts: Policy = format!("1/{seconds}s").parse().unwrap();
        let attempts = attempts.with_counting(Counting::Attempts);
        let (key, plenty) = (seconds.to_string(), policy!("99/1h"));
        for call in 0..5 {
            let [one, other] = [(&*key, &attempts), ("other", &plenty)]
                .map(|(key, policy)| JointOp::from(Op::acquire(key, policy)));
            let facts = store.apply_all(&[one, other]).await.unwrap().unwrap();
            let is_appended = matches!(facts[1].as_ref().unwrap().outcome, Outcome::Appended(_));
            let is_admitted = facts[0].as_ref().unwrap().admitted;
            assert_eq!(is_admitted, is_appended, "call {call} within {seconds} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_decides_no_other_log_and_recovers_by_joint_calls_alone() {
    let remote = testbed::Faulty::<ReferenceStore>::default();
    remote.rule(|verb, log| match verb {
        "apply_all" => Does::Separate,
        _ if log.key.ends_with(b"@down") => Does::Refuse,
        _ => Does::Answer,
    });
    let stack = Guarded::builder(remote.clone()).failure_threshold(1);
    let stack = stack.fail_open();
    let limiter = Limiter::new("n", policy!("1/1h"), Arc::new(stack.clone()));
    let both = async |first, second| {
        let both = AllOf::new().with(limiter.acquire(first));
        let both = both.with(limiter.acquire(second));
        !both.await.unwrap().is_denied()
    };
    assert!(both("1@down", "2@up").await && stack.in_outage());
    let is_alone = !both("1@down", "2@up").await;
    assert!(is_alone, "the healthy node has decided");
    remote.set(Does::Separate);
    for keys in [["3@down", "4@down"], ["5@down", "6@down"]] {
        sleep(Duration::from_secs(1)).await;
        assert!(stack.in_outage() && both(keys[0], keys[1]).await);
    }
    assert!(!stack.in_outage(), "the store has responded for a second");
}
