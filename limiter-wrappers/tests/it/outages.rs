//! What each wrapper does when the store is down.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::request::AllOf;
use limiter_core::store::{EntryId, Facts, LogKey, Op, Settlement, SettlementFacts, async_trait};
use limiter_core::{
    Counting, Error, ErrorKind, Limiter, Receipt, SharedStore, Timestamp, WindowStore, policy,
};
use limiter_memory::MemoryStore;
use limiter_testkit::ReferenceStore;
use limiter_wrappers::{Guarded, GuardedBuilder, Outage};
use tokio::time::advance;

use crate::scene::{Does, Faulty, Scene, Server, bare, wait};

const PAUSE: Duration = Duration::from_secs(1);

fn breaker(stack: GuardedBuilder<Server>) -> GuardedBuilder<Server> {
    stack.failure_threshold(3).cooldown(PAUSE)
}

impl Scene {
    /// Refuses calls on the logs of a node.
    fn take_down(&self, node: &'static [u8]) {
        self.server
            .rule(move |_, log| match log.key.ends_with(node) {
                true => Does::Refuse,
                false => Does::Answer,
            });
    }

    /// Returns the nodes whose breakers are open.
    fn open(&self) -> String {
        let open = self
            .store()
            .breakers()
            .into_iter()
            .filter(|(_, is_open)| *is_open);
        let mut open: Vec<_> = open
            .map(|(node, _)| node.as_deref().unwrap_or("-").to_owned())
            .collect();
        open.sort();
        open.join(" ")
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_opens_after_failures_in_a_row_and_lets_a_probe_pass_after_each_pause() {
    let scene = Scene::new("99/1h", |stack| breaker(stack).or_error());
    for (does, count) in [(Does::Refuse, 2), (Does::Answer, 1), (Does::Refuse, 2)] {
        scene.server.set(does);
        for _ in 0..count {
            assert_eq!(scene.acquire("k", 1).await.is_ok(), does == Does::Answer);
        }
    }
    assert_eq!(scene.open(), "");
    assert!(scene.acquire("k", 1).await.is_err() && scene.open() == "-");
    for (does, calls) in [(Does::Refuse, 1), (Does::Answer, 2)] {
        let before = scene.server.calls();
        wait(996).await;
        let blocked = scene.limiter.acquire("k").await.unwrap_err();
        assert!(
            blocked.to_string().contains("failed 3 times in a row"),
            "{blocked}"
        );
        assert_eq!(scene.server.calls(), before);
        wait(4).await;
        scene.server.set(does);
        for _ in 0..2 {
            assert_eq!(
                scene.limiter.acquire("k").await.is_ok(),
                does == Does::Answer
            );
        }
        assert_eq!(scene.server.calls() - before, calls);
    }
    assert_eq!(scene.open(), "");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_no_outage_passes_and_the_next_call_is_the_probe() {
    for build in [
        GuardedBuilder::or_error,
        GuardedBuilder::fail_open,
        GuardedBuilder::fail_closed,
    ] {
        let scene = Scene::new("9/1h", |stack| build(breaker(stack)));
        for (does, kind) in [
            (Does::Corrupt, ErrorKind::Corrupt),
            (Does::Misconfigure, ErrorKind::Configuration),
        ] {
            scene.server.set(does);
            for _ in 0..4 {
                assert_eq!(scene.acquire("k", 1).await, Err(kind));
            }
        }
        assert!(!scene.store().in_outage() && scene.open().is_empty());
        scene.server.set(Does::Refuse);
        for _ in 0..3 {
            _ = scene.acquire("k", 1).await;
        }
        wait(1_000).await;
        scene.server.set(Does::Misconfigure);
        for _ in 0..2 {
            assert_eq!(scene.acquire("k", 1).await, Err(ErrorKind::Configuration));
        }
        assert_eq!(scene.open(), "-");
        scene.server.set(Does::Corrupt);
        assert_eq!(scene.acquire("k", 1).await, Err(ErrorKind::Corrupt));
        assert_eq!(scene.open(), "");
    }
}

/// Each node has its own breaker and its own outages. Nobody can call a node that left the store.
#[tokio::test(start_paused = true)]
async fn nodes_fail_and_recover_alone() {
    let seen = Arc::<Mutex<String>>::default();
    let notes = Arc::clone(&seen);
    let scene = Scene::new("99/1h", |stack| {
        breaker(stack)
            .or_error()
            .on_outage(move |outage: Outage<'_>| {
                *notes.lock().unwrap() += &match outage {
                    Outage::Began { node, error } => {
                        format!("{} began {} ", node.unwrap_or("-"), error.kind())
                    }
                    Outage::Ended { node, calls } => {
                        format!("{} ended {calls} ", node.unwrap_or("-"))
                    }
                    _ => String::new(),
                };
            })
    });
    let seen = || std::mem::take(&mut *seen.lock().unwrap());
    scene.take_down(b"@a");
    for call in 0..3 {
        assert!(scene.acquire("k@a", 1).await.is_err());
        assert!(scene.acquire("k@b", 1).await.is_ok() && scene.acquire("k", 1).await.is_ok());
        assert_eq!(scene.open(), if call == 2 { "a" } else { "" });
    }
    let blocked = scene.limiter.acquire("other@a").await.unwrap_err();
    assert!(
        blocked.to_string().contains("3 times in a row on a;"),
        "{blocked}"
    );
    assert_eq!(seen(), "a began unavailable ");
    scene.take_down(b"@b");
    wait(1_000).await;
    assert!(scene.acquire("k@b", 1).await.is_err() && scene.acquire("k@a", 1).await.is_ok());
    wait(999).await;
    assert!(scene.acquire("k@a", 1).await.is_ok() && scene.store().in_outage());
    assert_eq!(seen(), "b began unavailable a ended 4 ");
    wait(61_000).await;
    assert!(scene.acquire("k@a", 1).await.is_ok() && !scene.store().in_outage());
    assert_eq!(seen(), "b ended 1 ");
}

#[tokio::test(start_paused = true)]
async fn fail_open_admits_and_counts_nowhere() {
    let scene = Scene::new("2/1h, 9/1d", GuardedBuilder::fail_open);
    assert_eq!(
        [scene.acquire("k", 2).await, scene.acquire("k", 1).await],
        [Ok(true), Ok(false)]
    );
    scene.server.set(Does::Refuse);
    for _ in 0..2 {
        assert_eq!(scene.acquire("k", 2).await, Ok(true));
    }
    let limiter = &scene.limiter;
    assert_eq!(limiter.peek("k").await.unwrap().used(), 0);
    assert!(limiter.record("k").await.unwrap().receipt().is_none());
    assert_eq!(
        scene.acquire("k", 3).await,
        Err(ErrorKind::CostExceedsLimit)
    );
    assert!(limiter.reset("k").await.is_err() && scene.store().in_outage());
    let permit = limiter
        .acquire("k")
        .permit()
        .await
        .unwrap()
        .into_result()
        .unwrap();
    assert!(!permit.decision().appended() && permit.receipt().is_none());
    let settled = permit.settle_or_record(1).await.unwrap();
    assert!(!settled.applied() && !settled.recorded());
    scene.server.set(Does::Answer);
    for (millis, is_out) in [(0, true), (998, true), (0, false)] {
        wait(millis).await;
        assert_eq!(
            (scene.acquire("k", 1).await, scene.store().in_outage()),
            (Ok(false), is_out)
        );
    }
}

/// For the stated time, or the longest window.
#[tokio::test(start_paused = true)]
async fn fail_closed_denies() {
    for (policy, retry_after) in [("5/1h, 2/1s", 2_000), ("5/500ms", 500)] {
        let scene = Scene::new(policy, |stack| stack.cooldown(2 * PAUSE).fail_closed());
        scene.server.set(Does::Refuse);
        let denied = scene.limiter.acquire("k").await.unwrap();
        assert_eq!(
            denied.retry_after(),
            Some(Duration::from_millis(retry_after))
        );
        assert!(
            scene.limiter.peek("k").await.unwrap().used() > 0
                && scene.limiter.record("k").await.is_err()
        );
    }
    let faulty = Faulty::default();
    faulty.set(Does::Refuse);
    let policy = policy!("5/1h").with_counting(Counting::Attempts);
    let limiter = Limiter::new("a", policy, bare(faulty).cooldown(PAUSE).fail_closed());
    let attempt = limiter.acquire("key").await.unwrap();
    assert_eq!(
        (attempt.is_allowed(), attempt.retry_after()),
        (false, Some(PAUSE))
    );
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_saturate() {
    let builds: [fn(GuardedBuilder<Server>) -> Guarded<Server>; 3] = [
        GuardedBuilder::fail_open,
        GuardedBuilder::fail_closed,
        |stack| stack.fallback(MemoryStore::new()),
    ];
    for (build, admits) in builds.into_iter().zip([true, false, true]) {
        let scene = Scene::new("1/1h", |stack| {
            let stack = stack.failure_threshold(1).cooldown(Duration::MAX);
            build(stack.denial_cache_capacity(9).denial_ttl(Duration::MAX))
        });
        assert_eq!(
            [scene.acquire("k", 1).await, scene.acquire("k", 1).await],
            [Ok(true), Ok(false)]
        );
        scene.server.set(Does::Refuse);
        assert_eq!(
            [scene.acquire("a", 1).await, scene.acquire("b", 1).await],
            [Ok(admits); 2]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_in_a_hurry_begins_no_outage_and_opens_no_breaker() {
    let faulty = Faulty::default();
    let store = Arc::new(
        Guarded::builder(faulty.clone())
            .failure_threshold(1)
            .or_error(),
    );
    let limiter = Limiter::new("t", policy!("5/1h"), Arc::clone(&store) as SharedStore);
    faulty.set(Does::Hang);
    for (millis, opens) in [(20, false), (20, false), (999, true)] {
        let call = AllOf::new()
            .timeout(Duration::from_millis(millis))
            .with(limiter.acquire("key"));
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(
            store.breakers().iter().any(|(_, is_open)| *is_open),
            opens,
            "{millis} ms"
        );
        assert_eq!(store.in_outage(), opens, "{millis} ms");
    }
}

#[test]
fn a_refund_outside_a_runtime_needs_no_timer_and_never_panics() {
    let policy = policy!("5/1h");
    let poll = |store: &dyn WindowStore| {
        let receipt = Receipt::new(
            EntryId::from_u128(1),
            Timestamp::EPOCH,
            policy.longest_window(),
        );
        let refund = Settlement::new(Op::acquire("key", &policy).log, &policy, receipt, 0);
        match store
            .settle(refund)
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(answer) => answer
                .map(|facts| facts.applied())
                .map_err(|error| error.kind()),
            Poll::Pending => panic!("it would wait forever"),
        }
    };
    assert_eq!(
        poll(&Guarded::builder(MemoryStore::new()).or_error()),
        Ok(false)
    );
    assert_eq!(
        poll(&Guarded::builder(Faulty::default()).or_error()),
        Err(ErrorKind::Configuration)
    );
}

/// Responds to what does not write.
#[derive(Debug)]
struct Full(ReferenceStore);

#[async_trait]
impl WindowStore for Full {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let facts = self.0.apply(op.to_peek()).await?;
        match op.appends(facts.admitted) {
            true => Err(Error::new(ErrorKind::Unavailable, "out of memory")),
            false => Ok(facts),
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.0.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.0.reset(log).await
    }
}

/// Nobody writes, so nobody knows whether writes are still refused.
#[tokio::test(start_paused = true)]
async fn an_outage_of_writes_is_over_a_minute_after_the_last_that_failed() {
    let store = Guarded::builder(Full(ReferenceStore::new())).or_error();
    let limiter = Limiter::new("t", policy!("5/1h"), store.clone());
    for outages in 1..=2 {
        for _ in 0..2 {
            assert!(limiter.acquire("key").await.is_err());
            for _ in 0..60 {
                assert!(limiter.peek("key").await.is_ok());
                assert!(store.in_outage());
                advance(PAUSE).await;
            }
        }
        advance(PAUSE).await;
        assert!(limiter.peek("key").await.is_ok());
        assert_eq!((store.in_outage(), store.outages()), (false, outages));
    }
}
