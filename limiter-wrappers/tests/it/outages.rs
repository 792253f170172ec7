//! What each wrapper does when the store is down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
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
        let breakers = self.store().breakers().into_iter();
        let open = breakers.filter_map(|(node, is_open)| node.filter(|_| is_open));
        open.map(|node| node.to_string()).collect()
    }
}

/// Each node has its own breaker, which opens after failures in a row, and its own outages. Nobody can call a node that left the store.
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
    let blocked = blocked.to_string();
    assert!(blocked.contains("3 times in a row on a;"), "{blocked}");
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
    assert_eq!(scene.acquires("k", &[2, 1]).await, [Ok(true), Ok(false)]);
    scene.server.set(Does::Refuse);
    let decided = [Ok(true), Ok(true), Err(ErrorKind::CostExceedsLimit)];
    assert_eq!(scene.acquires("k", &[2, 2, 3]).await, decided);
    let limiter = &scene.limiter;
    assert_eq!(limiter.peek("k").await.unwrap().used(), 0);
    assert!(limiter.record("k").await.unwrap().receipt().is_none());
    assert!(limiter.reset("k").await.is_err() && scene.store().in_outage());
    let permit = limiter.acquire("k").permit().await.unwrap();
    let permit = permit.into_result().unwrap();
    assert!(!permit.decision().appended() && permit.receipt().is_none());
    let settled = permit.settle_or_record(1).await.unwrap();
    assert!(!settled.applied() && !settled.recorded());
    scene.server.set(Does::Answer);
    for (millis, is_out) in [(0, true), (998, true), (0, false)] {
        wait(millis).await;
        assert_eq!(scene.acquire("k", 1).await, Ok(false));
        assert_eq!(scene.store().in_outage(), is_out);
    }
}

/// For the stated time, or the longest window.
#[tokio::test(start_paused = true)]
async fn fail_closed_denies() {
    for (policy, retry_after) in [("5/1h, 2/1s", 2_000), ("5/500ms", 500)] {
        let scene = Scene::new(policy, |stack| stack.cooldown(2 * PAUSE).fail_closed());
        scene.server.set(Does::Refuse);
        let denied = scene.limiter.acquire("k").await.unwrap();
        let retry_after = Duration::from_millis(retry_after);
        assert_eq!(denied.retry_after(), Some(retry_after));
        assert!(scene.limiter.peek("k").await.unwrap().used() > 0);
        assert!(scene.limiter.record("k").await.is_err());
    }
    let faulty = Faulty::default();
    faulty.set(Does::Refuse);
    let policy = policy!("5/1h").with_counting(Counting::Attempts);
    let limiter = Limiter::new("a", policy, bare(faulty).cooldown(PAUSE).fail_closed());
    let attempt = limiter.acquire("key").await.unwrap();
    assert_eq!(attempt.retry_after(), Some(PAUSE));
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
        assert_eq!(scene.acquires("k", &[1, 1]).await, [Ok(true), Ok(false)]);
        scene.server.set(Does::Refuse);
        assert_eq!(scene.acquire("a", 1).await, Ok(admits));
        assert_eq!(scene.acquire("b", 1).await, Ok(admits));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_in_a_hurry_begins_no_outage_and_opens_no_breaker() {
    let faulty = Faulty::default();
    let stack = Guarded::builder(faulty.clone()).failure_threshold(1);
    let store = Arc::new(stack.or_error());
    let limiter = Limiter::new("t", policy!("5/1h"), Arc::clone(&store) as SharedStore);
    faulty.set(Does::Hang);
    for (millis, opens) in [(20, false), (20, false), (999, true)] {
        let call = AllOf::new()
            .timeout(Duration::from_millis(millis))
            .with(limiter.acquire("key"));
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Timeout);
        let is_open = store.breakers().iter().any(|(_, is_open)| *is_open);
        assert_eq!([is_open, store.in_outage()], [opens; 2], "{millis} ms");
    }
}

#[test]
fn a_refund_outside_a_runtime_needs_no_timer_and_never_panics() {
    let policy = policy!("5/1h");
    let poll = |store: &dyn WindowStore| {
        let window = policy.longest_window();
        let receipt = Receipt::new(EntryId::from_u128(1), Timestamp::EPOCH, window);
        let refund = Settlement::new(Op::acquire("key", &policy).log, &policy, receipt, 0);
        let settled = store.settle(refund).now_or_never();
        let settled = settled.expect("it would wait forever");
        settled
            .map(|facts| facts.applied())
            .map_err(|error| error.kind())
    };
    let immediate = Guarded::builder(MemoryStore::new()).or_error();
    assert_eq!(poll(&immediate), Ok(false));
    let waiting = Guarded::builder(Faulty::default()).or_error();
    assert_eq!(poll(&waiting), Err(ErrorKind::Configuration));
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
