//! Leases: what is decided without the store, and when the store is asked.

use std::pin::pin;

use futures_util::future::join_all;
use futures_util::poll;
use limiter_core::store::{JointOp, Op};
use limiter_core::{Policy, SyncStore, WindowStore, policy};
use limiter_testkit::ReferenceStore;

use crate::scene::{Does, Scene, bare, wait};

fn scene(policy: &str) -> Scene {
    Scene::new(policy, |stack| {
        stack.denial_cache_capacity(100_000).or_error()
    })
}

impl Scene {
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
    for (count, waited, used) in [
        (7, 7, 7),
        (1, 1, 16),
        (8, 0, 16),
        (1, 1, 33),
        (16, 0, 33),
        (33, 1, 66),
    ] {
        assert_eq!(scene.burst("k", count, 1).await, waited);
        assert_eq!(scene.used("k"), used);
    }
    scene.limiter.reset("k").await.unwrap();
    assert_eq!((scene.burst("k", 1, 1).await, scene.used("k")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_block_that_was_not_used_up_is_followed_by_half_and_rare_acquires_take_none() {
    let scene = scene("1000/1h+10m");
    assert_eq!(scene.burst("k", 8, 1).await, 8);
    wait(590_623).await;
    // Nothing is spent at exactly 63/64 of the lease.
    assert_eq!(scene.burst("k", 1, 1).await, 0);
    assert_eq!(scene.burst("k", 4, 1).await, 4);
    assert_eq!((scene.used("k"), scene.burst("k", 1, 1).await), (20, 1));
    assert_eq!(scene.used("k"), 29);
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
    assert_eq!(
        [crowd(16).await, crowd(16).await, scene.used("k") as usize],
        [16, 16, 32]
    );
    scene.server.set(Does::Answer);
    assert_eq!(
        [crowd(16).await, crowd(32).await, scene.used("k") as usize],
        [16, 32, 112]
    );
}

#[tokio::test(start_paused = true)]
async fn all_but_plain_acquires_call_the_store() {
    let scene = scene("1000/1h+10m");
    scene.burst("k", 8, 1).await;
    let (limiter, before) = (&scene.limiter, scene.server.calls());
    let other = policy!("900/1h+10m");
    drop(limiter.acquire("k").permit().await.unwrap());
    assert!(
        limiter
            .acquire("k")
            .idempotency_key(7_u128)
            .await
            .unwrap()
            .is_allowed()
    );
    assert!(
        limiter
            .acquire("k")
            .policy(&other)
            .await
            .unwrap()
            .is_allowed()
    );
    assert!(
        limiter
            .acquire("k")
            .policy(&policy!("1000/1h"))
            .await
            .unwrap()
            .is_allowed()
    );
    drop((
        limiter.record("k").await.unwrap(),
        limiter.peek("k").await.unwrap(),
    ));
    assert_eq!((scene.server.calls() - before, scene.used("k")), (6, 21));
    // A higher cost leaves the block.
    assert_eq!(scene.burst("k", 1, 9).await, 1);
    assert_eq!((scene.burst("k", 8, 1).await, scene.used("k")), (0, 30));
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
    for (count, waited, used) in [
        (8, 8, 16),
        (8, 0, 16),
        (1, 1, 29),
        (12, 0, 29),
        (11, 11, 40),
    ] {
        assert_eq!(
            (scene.burst("k", count, 1).await, scene.used("k")),
            (waited, used)
        );
    }
    assert!(!scene.acquire("k", 1).await.unwrap());
    let scene = self::scene("100/1h+10m");
    for (count, waited, used) in [(8, 8, 48), (8, 0, 48), (1, 1, 75), (8, 0, 75)] {
        assert_eq!(
            (scene.burst("k", count, 3).await, scene.used("k")),
            (waited, used)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refused_with_a_block_an_acquire_is_decided_again_without() {
    let admitted = scene("1000/1h+10m");
    admitted.burst("k", 7, 1).await;
    admitted.take("k", 990);
    let before = admitted.server.calls();
    assert!(admitted.acquire("k", 1).await.unwrap());
    assert_eq!(
        (admitted.server.calls() - before, admitted.used("k")),
        (2, 998)
    );

    // That denial is cached, with the wait of the cost alone.
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
async fn a_lost_reply_is_never_spent_and_the_next_acquire_asks() {
    let scene = scene("1000/1h+10m");
    scene.burst("k", 7, 1).await;
    scene.server.set(Does::LoseAnswer);
    assert!(scene.acquire("k", 1).await.is_err());
    scene.server.set(Does::Answer);
    assert_eq!((scene.burst("k", 7, 1).await, scene.used("k")), (7, 23));
    assert_eq!((scene.burst("k", 1, 1).await, scene.used("k")), (1, 40));
    // A dropped request.
    scene.burst("d", 7, 1).await;
    {
        let acquire = pin!(scene.limiter.acquire("d").into_future());
        assert!(poll!(acquire).is_pending());
    }
    assert_eq!((scene.burst("d", 8, 1).await, scene.used("d")), (8, 31));
    // The block is spent during an outage.
    scene.server.set(Does::Refuse);
    assert_eq!(scene.burst("d", 16, 1).await, 0);
    assert!(scene.acquire("d", 1).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_block_that_can_be_spent_keeps_its_place() {
    let scene = Scene::new("1000/1h+10m", |stack| {
        stack.denial_cache_capacity(1).or_error()
    });
    for (key, count, waited, used) in [
        ("a", 8, 8, 16),
        ("b", 20, 20, 20),
        ("a", 8, 0, 16),
        ("b", 8, 8, 36),
        ("b", 8, 0, 36),
    ] {
        assert_eq!(
            (scene.burst(key, count, 1).await, scene.used(key)),
            (waited, used),
            "{key}"
        );
    }
}

static POLICY: Policy = policy!("1000/1h+10m");

/// Joint acquires on the keys `a` and `b`: how many, the calls, and what both keys then count.
#[tokio::test]
async fn several_operations_are_decided_from_blocks_if_blocks_cover_all() {
    let remote = testbed::Faulty::<ReferenceStore>::default();
    let store = bare(remote.clone())
        .denial_cache_capacity(100)
        .seed(1)
        .or_error();
    let used = |key| remote.store().apply_now(&Op::peek(key, &POLICY)).log.usage[0].used;
    for (keys, times, calls, expected) in [
        (&["a", "b"][..], 8, 8, [16, 16]),
        // One block is short: one call, with a block for that one, and nothing is spent twice.
        (&["a"], 1, 0, [16, 16]),
        (&["a", "b"], 7, 0, [16, 16]),
        (&["a", "b"], 1, 1, [33, 17]),
        (&["b"], 1, 0, [33, 17]),
        (&["b"], 1, 1, [33, 34]),
    ] {
        let before = remote.calls();
        for _ in 0..times {
            let ops: Vec<JointOp<'_>> = keys
                .iter()
                .map(|key| Op::acquire(key, &POLICY).into())
                .collect();
            for (joint, facts) in ops
                .iter()
                .zip(store.apply_all(&ops).await.unwrap().unwrap())
            {
                let facts = facts.unwrap();
                facts.verify(&joint.described_by(&facts)).unwrap();
                assert!(!facts.refundable);
            }
        }
        assert_eq!(
            (remote.calls() - before, ["a", "b"].map(used)),
            (calls, expected),
            "{keys:?}"
        );
    }
}
