//! What each wrapper does when the store is down.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::script::{Build, Does, Faulty, Scene, Server, bare};
use limiter_core::request::AllOf;
use limiter_core::store::{EntryId, Facts, LogKey, Op, Settlement, SettlementFacts, async_trait};
use limiter_core::{
    Error, ErrorKind, Limiter, Receipt, SharedStore, Timestamp, WindowStore, policy,
};
use limiter_memory::MemoryStore;
use limiter_testkit::{ReferenceStore, poll_times};
use limiter_wrappers::{Guarded, GuardedBuilder};
use tokio::time::{advance, sleep};

const PAUSE: Duration = Duration::from_secs(1);

const TIMEOUT: Build = |stack| stack.timeout(Duration::from_millis(300)).or_error();
const BREAKER: Build = |stack| stack.failure_threshold(3).cooldown(PAUSE).or_error();
const OPEN: Build = GuardedBuilder::fail_open;
const CLOSED: Build = |stack| stack.cooldown(2 * PAUSE).fail_closed();
const CACHED: Build = |stack| {
    stack
        .denial_cache_capacity(9)
        .denial_ttl(9 * PAUSE)
        .fail_open()
};
const ALL: Build = |stack| {
    stack
        .timeout(Duration::from_millis(100))
        .failure_threshold(2)
        .cooldown(PAUSE)
        .denial_cache_capacity(9)
        .fail_open()
};

fn longest(stack: GuardedBuilder<Server>) -> GuardedBuilder<Server> {
    stack
        .failure_threshold(1)
        .cooldown(Duration::MAX)
        .denial_cache_capacity(9)
        .denial_ttl(Duration::MAX)
}

const CASES: [(Build, &str, &str); 16] = [
    // A hanging store costs the timeout.
    (
        TIMEOUT,
        "5/1h",
        "AAA, acquire k 1, HHH, acquire k 1 = not respond in time, now = 302, peek k = timeout, settle 0 0 = timeout, \
         reset k = timeout",
    ),
    // The breaker opens after three failures in a row, and one call passes after each pause.
    (
        BREAKER,
        "99/1h",
        "RRR, acquire k 1 = refused, acquire k 1 = refused, AAA, acquire k 1, RRR, acquire k 1 = refused, \
         acquire k 1 = refused, open =, acquire k 1 = refused, open = -, calls = 6, \
         acquire k 1 = failed 3 times in a row, wait 997, acquire k 1 = in a row, calls = 0, acquire k 1 = refused, \
         acquire k 1 = in a row, calls = 1, wait 998, AAA, acquire k 1, open =, acquire k 1, calls = 2",
    ),
    // An error that is no outage passes.
    (
        BREAKER,
        "9/1h",
        "CCC, acquire k 1 = corrupt, acquire k 1 = corrupt, acquire k 1 = corrupt, open =",
    ),
    (OPEN, "9/1h", "CCC, acquire k 1 = corrupt, state = well"),
    (CLOSED, "9/1h", "CCC, acquire k 1 = corrupt, state = well"),
    // Each node has its own breaker.
    (
        BREAKER,
        "99/1h",
        "down a, acquire 1@a 1 = refused, acquire 1@b 1, acquire 1 1, acquire 1@a 1 = refused, open =, \
         acquire 1@a 1 = refused, open = a, acquire 2@a 1 = 3 times in a row on a;, acquire 2@b 1, acquire 2 1, \
         wait 1000, acquire 2@a 1 = refused, acquire 2@a 1 = in a row, acquire 3@b 1, down b, \
         acquire 3@b 1 = refused, acquire 3@b 1 = refused, acquire 3@b 1 = refused, open = a b, wait 500, \
         acquire 3@b 1 = in a row on b;, acquire 3@a 1 = in a row on a;, wait 500, acquire 3@a 1, acquire 3@a 1, \
         open = b, wait 61000, open =, acquire 3@a 1, acquire 4@b 1 = refused",
    ),
    // Each node has its own outages. Nobody can call a node that left the store.
    (
        OPEN,
        "99/1h",
        "down a, acquire k@a 1, acquire k@b 1, wait 900, acquire k@a 1, acquire k@b 1, wait 900, acquire k@b 1, \
         state = a began unavailable out, down b, acquire k@a 1, acquire k@b 1, wait 1000, acquire k@a 1, \
         state = b began unavailable a ended 2 out, wait 61000, state = out, acquire k@a 1, state = b ended 1 well",
    ),
    // Fail open admits, and its admissions count nowhere.
    (
        OPEN,
        "2/1h, 9/1d",
        "AAA, acquire k 2, acquire k 1 = denied, RRR, acquire k 2, acquire k 2, shown k = 0 0ns, record k, \
         settle 0 1 = false, acquire k 3 = cost_exceeds_limit, reset k = unavailable, \
         state = - began unavailable out, AAA, acquire k 1 = denied, state = out, wait 999, \
         acquire k 1 = denied, state = - ended 6 well",
    ),
    // An error that is not about the log's data closes no breaker, and the next call is the probe.
    (
        BREAKER,
        "5/1h",
        "RRR, acquire k 1 = unavailable, acquire k 1 = unavailable, acquire k 1 = unavailable, MMM, wait 1000, \
         acquire k 1 = configuration, open = -, acquire k 1 = configuration, wait 1000, acquire k 1 = configuration, \
         state = - began unavailable out, CCC, acquire k 1 = corrupt, open =, AAA, wait 1000, acquire k 1, \
         state = - ended 3 well",
    ),
    // A denial of the cache ends no outage.
    (
        CACHED,
        "1/1h",
        "acquire k 1, acquire k 1 = denied, RRR, acquire other 1, state = - began unavailable out, AAA, \
         acquire k 1 = denied, wait 2000, acquire k 1 = denied, state = out, acquire other 1, wait 999, \
         acquire k 1 = denied, state = out, acquire some 1, state = - ended 1 well",
    ),
    // Fail closed denies for the stated time, or the longest window.
    (
        CLOSED,
        "5/1h, 2/1s",
        "AAA, acquire k 1, RRR, acquire k 1 = denied, shown k = 5 2s, record k = unavailable, \
         settle 0 0 = unavailable, AAA, acquire k 1, state = - began unavailable out, wait 1000, acquire k 1, \
         state = - ended 4 well",
    ),
    (CLOSED, "5/500ms", "RRR, shown k = 5 500ms"),
    // The stack responds immediately while its breaker is open.
    (
        ALL,
        "3/1h",
        "HHH, acquire k 1, acquire k 1, now = 202, acquire k 1, acquire k 1, acquire k 1, now = 205, wait 1000, AAA, \
         acquire k 1, used k = 1",
    ),
    // The longest durations saturate.
    (
        |stack| longest(stack).fail_open(),
        "1/1h",
        "AAA, acquire k 1, acquire k 1 = denied, RRR, acquire a 1, acquire b 1",
    ),
    (
        |stack| longest(stack).fail_closed(),
        "1/1h",
        "AAA, acquire k 1, acquire k 1 = denied, RRR, acquire a 1 = denied, acquire b 1 = denied",
    ),
    (
        |stack| longest(stack).fallback(MemoryStore::new()),
        "1/1h",
        "AAA, acquire k 1, acquire k 1 = denied, RRR, acquire a 1, acquire b 1",
    ),
];

#[tokio::test(start_paused = true)]
async fn each_stack_does_in_an_outage_what_it_says() {
    for (build, policy, script) in CASES {
        Scene::new(policy, build).play(script).await;
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

/// Of three calls after a pause one passes. If nobody polls it, another passes after the next pause.
#[tokio::test(start_paused = true)]
async fn one_probe_passes_each_pause() {
    let faulty = Faulty::default();
    let limiter = Limiter::new(
        "t",
        policy!("9/1h"),
        bare(faulty.clone())
            .failure_threshold(1)
            .cooldown(PAUSE)
            .or_error(),
    );
    faulty.set(Does::Refuse);
    assert!(limiter.acquire("key").await.is_err());
    advance(PAUSE).await;
    faulty.set(Does::Answer);
    let mut probe = Box::pin(limiter.acquire("key").into_future());
    assert!(poll_times(1, &mut probe).await.is_none());
    assert!(
        limiter.acquire("key").await.is_err()
            && limiter.acquire("key").await.is_err()
            && faulty.calls() == 2
    );
    advance(PAUSE).await;
    assert!(limiter.acquire("key").await.unwrap().is_allowed());
    assert!(probe.await.unwrap().is_allowed());
}

#[tokio::test]
async fn fail_closed_counts_no_attempt() {
    let faulty = Faulty::default();
    faulty.set(Does::Refuse);
    let policy = policy!("5/1h").with_counting(limiter_core::Counting::Attempts);
    let attempt = Limiter::new("a", policy, bare(faulty).cooldown(PAUSE).fail_closed())
        .acquire("key")
        .await
        .unwrap();
    assert_eq!(
        (attempt.is_allowed(), attempt.retry_after()),
        (false, Some(PAUSE))
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

#[tokio::test(start_paused = true)]
async fn a_slot_lasts_to_the_end_of_its_work_if_the_store_cannot_count_it() {
    let scene = Scene::new("1/3s, 9/1h", OPEN);
    let (limiter, server) = (&scene.limiter, &scene.server);
    let acquire = async || {
        let acquire = limiter.acquire("k").permit().await;
        acquire.unwrap().into_result().unwrap()
    };
    server.set(Does::Refuse);
    for _ in 0..2 {
        let slot = acquire().await;
        assert!(!slot.decision().appended() && slot.receipt().is_none());
        assert_eq!(slot.decision().used(), 0);
        let settled = slot.settle_or_record(1).await.unwrap();
        assert!(!settled.applied() && !settled.recorded());
        slot.hold(sleep(10 * PAUSE)).await.unwrap();
    }
    let both = AllOf::new()
        .with(limiter.acquire("a"))
        .with(limiter.acquire("b"));
    let charges = both.await.unwrap().into_result().unwrap();
    assert_eq!(charges.len(), 2, "each call has its place");

    // A slot that counts outlives an outage that is shorter than its window, and no other.
    for (outage, is_held) in [(1, true), (4, false)] {
        server.set(Does::Answer);
        let slot = acquire().await;
        let faults = async {
            sleep(PAUSE).await;
            server.set(Does::Refuse);
            sleep(outage * PAUSE).await;
            server.set(Does::Answer);
        };
        let (held, ()) = futures_util::join!(slot.hold(sleep(10 * PAUSE)), faults);
        assert_eq!(held.is_ok(), is_held, "{held:?}");
        sleep(4 * PAUSE).await;
    }
}
