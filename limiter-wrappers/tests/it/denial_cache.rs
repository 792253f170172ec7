//! The denial cache never denies late, never admits early, and asks the store no more than it must.

use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{SyncStore, policy};

use crate::scene::{Does, Scene, wait};

/// Returns a scene with room for one denial, which lasts for this many seconds.
fn scene(policy: &str, seconds: u64) -> Scene {
    let ttl = Duration::from_secs(seconds);
    Scene::new(policy, |stack| {
        stack.denial_cache_capacity(1).denial_ttl(ttl).or_error()
    })
}

impl Scene {
    /// Makes an acquire of a unit, which must be denied. Returns the number of its calls.
    async fn denied(&self, key: &str) -> usize {
        let before = self.server.calls();
        assert_eq!(self.acquire(key, 1).await, Ok(false));
        self.server.calls() - before
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_denial_needs_no_call_and_its_fields_are_exact() {
    let scene = scene("2/1h", 1);
    assert_eq!(scene.acquire("k", 2).await, Ok(true));
    assert_eq!([scene.denied("k").await, scene.denied("k").await], [1, 0]);
    for (pause, rest) in [(0, 3_599_998), (100, 3_599_898)] {
        wait(pause).await;
        let shown = scene.limiter.acquire("k").await.unwrap();
        let retry_after = shown.retry_after().map(|wait| wait.as_millis());
        assert_eq!((shown.used(), retry_after), (2, Some(rest)));
    }
    // Another cost, policy, verb, id or key is another question.
    let (limiter, before) = (&scene.limiter, scene.server.calls());
    let other = policy!("9/1h");
    assert_eq!(scene.acquire("k", 2).await, Ok(false));
    drop(limiter.peek("k").await.unwrap());
    drop(limiter.acquire("k").idempotency_key(7_u128).await.unwrap());
    drop(limiter.acquire("other").await.unwrap());
    drop(limiter.acquire("k").policy(&other).await.unwrap());
    assert_eq!(scene.server.calls() - before, 5);
}

#[tokio::test(start_paused = true)]
async fn a_change_through_the_wrapper_shows_immediately() {
    let scene = scene("2/1h", 9);
    let limiter = &scene.limiter;
    for cost in [1, 0] {
        let charged = limiter.acquire("k").cost(2).await.unwrap();
        assert_eq!(scene.denied("k").await, 1);
        let settled = limiter.settle("k", charged.receipt().unwrap(), cost).await;
        assert!(settled.unwrap().applied());
        assert_eq!(scene.acquire("k", 1).await, Ok(true));
        limiter.reset("k").await.unwrap();
    }
    drop(limiter.record("k").cost(2).await.unwrap());
    assert_eq!([scene.denied("k").await, scene.denied("k").await], [1, 0]);
    drop(limiter.record("k").await.unwrap());
    assert_eq!(scene.denied("k").await, 1);
    // One denial is held: another change leaves it, another denial replaces it.
    drop((
        limiter.record("a").cost(2).await.unwrap(),
        limiter.acquire("b").await.unwrap(),
    ));
    assert_eq!(
        [
            scene.denied("k").await,
            scene.denied("a").await,
            scene.denied("k").await
        ],
        [0, 1, 1]
    );
    // Known denials continue during an outage.
    scene.server.set(Does::Refuse);
    assert_eq!(scene.denied("k").await, 0);
    assert!(scene.acquire("other", 1).await.is_err());
}

/// A key that another process unblocks is denied until the denial is too old, or a unit is released.
#[tokio::test(start_paused = true)]
async fn a_denial_lasts_for_its_time() {
    for (policy, ttl, millis) in [
        ("1/30d", 1, 1_000),
        ("1/30d", 5, 5_000),
        ("1/1h", u64::MAX, 3_599_999),
    ] {
        let scene = scene(policy, ttl);
        assert_eq!(scene.acquire("k", 1).await, Ok(true));
        assert_eq!(scene.denied("k").await, 1);
        let log = Op::peek("k", scene.limiter.policy())
            .with_name("t".into())
            .log;
        assert!(scene.server.store().reset_now(log));
        wait(millis - 2).await;
        assert_eq!(scene.denied("k").await, 0);
        assert_eq!(scene.acquire("k", 1).await, Ok(true));
    }
}
