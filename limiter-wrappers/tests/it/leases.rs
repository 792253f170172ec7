//! Leases: what is decided without the store, and when the store is asked.

use futures_util::FutureExt;
use futures_util::future::join_all;
use limiter_core::store::Op;
use limiter_core::{SyncStore, policy};

use crate::scene::{Does, Scene, wait};

fn scene(policy: &str) -> Scene {
    Scene::new(policy, |stack| {
        stack.denial_cache_capacity(100_000).or_error()
    })
}

impl Scene {
    /// Makes acquires: how many, how many of them call the store, and what that then counts.
    async fn bursts(&self, key: &str, cost: u64, bursts: &[(u64, usize, u64)]) {
        for (count, waited, used) in bursts {
            let found = (self.burst(key, *count, cost).await, self.used(key));
            assert_eq!(found, (*waited, *used), "{count} acquires of {key}");
        }
    }

    /// Another process acquires.
    fn take(&self, key: &str, cost: u64) {
        let policy = self.limiter.policy();
        let acquire = Op::acquire(key, policy)
            .with_name("t".into())
            .with_cost(cost);
        assert!(self.server.store().apply_now(&acquire).admitted);
    }
}

/// A lease of 10 minutes can be spent for 590,625 ms.
#[tokio::test(start_paused = true)]
async fn the_eighth_acquire_takes_eight_and_each_next_block_twice_as_much() {
    let scene = scene("1000/1h+10m");
    let bursts = [
        (7, 7, 7),
        (1, 1, 16),
        (8, 0, 16),
        (1, 1, 33),
        (16, 0, 33),
        (33, 1, 66),
    ];
    scene.bursts("k", 1, &bursts).await;
    scene.limiter.reset("k").await.unwrap();
    scene.bursts("k", 1, &[(1, 1, 1)]).await;
    // A dropped request lets the next one ask.
    scene.burst("d", 7, 1).await;
    let dropped = scene.limiter.acquire("d").into_future().now_or_never();
    assert!(dropped.is_none());
    scene.bursts("d", 1, &[(8, 8, 31)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_block_that_was_not_used_up_is_followed_by_half_and_rare_acquires_take_none() {
    let scene = scene("1000/1h+10m");
    scene.bursts("k", 1, &[(8, 8, 16)]).await;
    wait(590_623).await;
    // Nothing is spent at exactly 63/64 of the lease.
    scene
        .bursts("k", 1, &[(1, 0, 16), (4, 4, 20), (1, 1, 29)])
        .await;
    for _ in 0..30 {
        wait(85_715).await;
        scene.burst("rare", 1, 1).await;
    }
    assert_eq!(scene.used("rare"), 30);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_grants_no_block() {
    let scene = scene("1000/1h+1s");
    let crowd = async |count: usize| {
        let before = scene.server.calls();
        join_all((0..count).map(|_| scene.limiter.acquire("k").into_future())).await;
        scene.server.calls() - before
    };
    scene.server.set(Does::AnswerLate);
    assert_eq!([crowd(16).await, crowd(16).await], [16, 16]);
    assert_eq!(scene.used("k"), 32);
    scene.server.set(Does::Answer);
    assert_eq!([crowd(16).await, crowd(32).await], [16, 32]);
    assert_eq!(scene.used("k"), 112);
}

#[tokio::test(start_paused = true)]
async fn all_but_plain_acquires_call_the_store() {
    let scene = scene("1000/1h+10m");
    scene.burst("k", 8, 1).await;
    let (limiter, before) = (&scene.limiter, scene.server.calls());
    let (other, without) = (policy!("900/1h+10m"), policy!("1000/1h"));
    drop(limiter.acquire("k").permit().await.unwrap());
    drop(limiter.acquire("k").idempotency_key(7_u128).await.unwrap());
    drop(limiter.acquire("k").policy(&other).await.unwrap());
    drop(limiter.acquire("k").policy(&without).await.unwrap());
    drop(limiter.record("k").await.unwrap());
    drop(limiter.peek("k").await.unwrap());
    assert_eq!((scene.server.calls() - before, scene.used("k")), (6, 21));
    // A higher cost leaves the block.
    scene.bursts("k", 9, &[(1, 1, 30)]).await;
    scene.bursts("k", 1, &[(8, 0, 30)]).await;
    for policy in ["1000/1h+10m, 900/1h", "16/1h+10m"] {
        let scene = self::scene(policy);
        for calls in 1..=10 {
            assert_eq!(scene.acquire("k", 1).await, Ok(true));
            assert_eq!(scene.server.calls(), calls, "{policy}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_is_at_most_half_of_what_remains_and_whole_multiples_of_the_cost() {
    let scene = scene("40/1h+10m");
    let bursts = [
        (8, 8, 16),
        (8, 0, 16),
        (1, 1, 29),
        (12, 0, 29),
        (11, 11, 40),
    ];
    scene.bursts("k", 1, &bursts).await;
    assert!(!scene.acquire("k", 1).await.unwrap());
    let scene = self::scene("100/1h+10m");
    let bursts = [(8, 8, 48), (8, 0, 48), (1, 1, 75), (8, 0, 75)];
    scene.bursts("k", 3, &bursts).await;
}

/// With the wait of the cost alone.
#[tokio::test(start_paused = true)]
async fn what_is_refused_with_a_block_and_without_is_cached() {
    let denied = scene("1000/1h+10m");
    denied.burst("k", 7, 1).await;
    denied.take("k", 993);
    let before = denied.server.calls();
    for _ in 0..2 {
        assert!(!denied.acquire("k", 1).await.unwrap());
    }
    assert_eq!(denied.server.calls() - before, 2);
    wait(500).await;
    let shown = denied.limiter.acquire("k").await.unwrap().retry_after();
    assert_eq!(shown.map(|wait| wait.as_millis()), Some(4_199_492));
}

#[tokio::test(start_paused = true)]
async fn a_block_that_can_be_spent_keeps_its_place() {
    let scene = Scene::new("1000/1h+10m", |stack| {
        stack.denial_cache_capacity(1).or_error()
    });
    scene.bursts("a", 1, &[(8, 8, 16)]).await;
    scene.bursts("b", 1, &[(20, 20, 20)]).await;
    scene.bursts("a", 1, &[(8, 0, 16)]).await;
    scene.bursts("b", 1, &[(8, 8, 36), (8, 0, 36)]).await;
}
