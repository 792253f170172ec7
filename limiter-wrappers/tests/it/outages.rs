//! What each wrapper does when the store is away.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::faulty::{Does, Faulty, Prompt};
use limiter_core::store::{Op, Settlement, attempt};
use limiter_core::{EntryId, ErrorKind, Limiter, Receipt, SharedStore, Timestamp, WindowStore, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::poll_times;
use limiter_wrappers::{CircuitBreaker, Failsafe, Fallback, Outage, Stack, Timeout};
use tokio::time::{Instant, advance};

const PAUSE: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_hanging_store_costs_the_timeout() {
    let faulty = Faulty::default();
    let limiter = Limiter::new("t", policy!("5/1h"), Timeout::new(faulty.clone(), Duration::from_millis(300)));
    assert!(limiter.acquire("key").await.unwrap().allowed());
    faulty.set(Does::Hang);
    let start = Instant::now();
    let error = limiter.acquire("key").await.unwrap_err();
    assert_eq!((error.kind(), error.limiter_name()), (ErrorKind::Timeout, Some("t")));
    assert!(error.to_string().contains("within 300ms"), "{error}");
    assert_eq!(start.elapsed(), Duration::from_millis(300));
    let receipt = {
        faulty.set(Does::Answer);
        limiter.acquire("key").await.unwrap().receipt().unwrap()
    };
    faulty.set(Does::Hang);
    assert_eq!(limiter.refund("key", receipt).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(limiter.reset("key").await.unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_refund_outside_a_runtime_needs_no_timer_and_never_panics() {
    let policy = policy!("5/1h");
    let poll = |store: &dyn WindowStore| {
        let receipt = Receipt::new(EntryId::from_u128(1), Timestamp::EPOCH, policy.longest_window());
        let refund = Settlement::new(Op::acquire("key", &policy).log, &policy, receipt, 0);
        match store.settle(refund).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.map(|facts| facts.applied).map_err(|error| error.kind()),
            Poll::Pending => panic!("it would wait for ever"),
        }
    };
    assert_eq!(poll(&Timeout::new(MemoryStore::new(), PAUSE)), Ok(false));
    assert_eq!(poll(&Timeout::new(Faulty::default(), PAUSE)), Err(ErrorKind::Configuration));
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_after_its_failures_and_probes_once_a_pause() {
    let faulty = Faulty::default();
    let breaker = CircuitBreaker::new(faulty.clone(), 3, PAUSE);
    let limiter = Limiter::new("t", policy!("9/1h"), breaker.clone());
    let refused = async || limiter.acquire("key").await.unwrap_err().to_string();
    faulty.set(Does::Refuse);
    for _ in 0..2 {
        assert!(refused().await.contains("refused"));
    }
    // An answer in between starts the count again.
    faulty.set(Does::Answer);
    assert!(limiter.acquire("key").await.unwrap().allowed());
    faulty.set(Does::Refuse);
    for _ in 0..3 {
        assert!(!breaker.is_open() && refused().await.contains("refused"));
    }
    assert!(breaker.is_open());
    let calls = faulty.calls();
    for _ in 0..100 {
        assert!(refused().await.contains("failed 3 times in a row"));
    }
    assert_eq!(faulty.calls(), calls);
    // One microsecond before the pause ends nothing passes; then one of many does.
    advance(PAUSE - Duration::from_micros(1)).await;
    assert!(refused().await.contains("in a row"));
    advance(Duration::from_micros(1)).await;
    let (a, b, c) = tokio::join!(refused(), refused(), refused());
    assert_eq!(faulty.calls(), calls + 1, "{a} {b} {c}");
    // The probe failed, so a whole pause follows.
    advance(PAUSE / 2).await;
    assert!(refused().await.contains("in a row"));
    advance(PAUSE / 2).await;
    faulty.set(Does::Answer);
    assert!(limiter.acquire("key").await.unwrap().allowed());
    assert!(!breaker.is_open());
    assert!(limiter.acquire("key").await.unwrap().allowed());
}

/// Node `a` fails, whatever else is called; node `b` and the logs without a node respond.
#[tokio::test(start_paused = true)]
async fn each_node_has_its_own_breaker() {
    let faulty = Faulty::default();
    faulty.rule(|_, log| if log.key.ends_with(b"@a") { Does::Refuse } else { Does::Answer });
    let breaker = CircuitBreaker::new(faulty.clone(), 3, PAUSE);
    let limiter = Limiter::new("t", policy!("1000/1h"), breaker.clone());
    let error = async |key| limiter.acquire(key).await.map(drop).unwrap_err().to_string();
    for n in 0..3 {
        assert!(!breaker.is_open() && error("1@a").await.contains("refused"), "{n}");
        assert!(limiter.acquire("1@b").await.is_ok() && limiter.acquire("1").await.is_ok());
    }
    assert!(breaker.is_open());
    for _ in 0..10 {
        let error = error("2@a").await;
        assert!(error.contains("3 times in a row on a;"), "{error}");
        assert!(limiter.acquire("2@b").await.is_ok() && limiter.acquire("2").await.is_ok());
    }
    // A failed probe keeps the others as they are, and so does an answered one.
    advance(PAUSE).await;
    assert!(error("2@a").await.contains("refused") && error("2@a").await.contains("in a row"));
    assert!(limiter.acquire("3@b").await.is_ok());
    faulty.rule(|_, log| if log.key.ends_with(b"@b") { Does::Refuse } else { Does::Answer });
    for _ in 0..3 {
        assert!(error("3@b").await.contains("refused"));
    }
    advance(PAUSE / 2).await;
    assert!(error("3@b").await.contains("in a row on b;") && error("3@a").await.contains("in a row on a;"));
    advance(PAUSE / 2).await;
    assert!(limiter.acquire("3@a").await.is_ok() && limiter.acquire("3@a").await.is_ok() && breaker.is_open());
    // A node that left the store is no longer called, so no probe can end its outage.
    advance(Duration::from_secs(61)).await;
    assert!(!breaker.is_open());
    assert!(limiter.acquire("3@a").await.is_ok());
    assert!(error("4@b").await.contains("refused"), "it may have come back");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_makes_room_for_the_next() {
    let faulty = Faulty::default();
    let limiter = Limiter::new("t", policy!("9/1h"), CircuitBreaker::new(faulty.clone(), 1, PAUSE));
    faulty.set(Does::Refuse);
    assert!(limiter.acquire("key").await.is_err());
    advance(PAUSE).await;
    faulty.set(Does::Hang);
    let probe = tokio::time::timeout(Duration::from_millis(1), limiter.acquire("key")).await;
    assert!(probe.is_err(), "the probe hangs");
    faulty.set(Does::Answer);
    assert!(limiter.acquire("key").await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_nobody_polls_blocks_others_for_one_pause() {
    let faulty = Faulty::default();
    let limiter = Limiter::new("t", policy!("9/1h"), CircuitBreaker::new(faulty.clone(), 1, PAUSE));
    faulty.set(Does::Refuse);
    assert!(limiter.acquire("key").await.is_err());
    advance(PAUSE).await;
    faulty.set(Does::Answer);
    let mut probe = Box::pin(limiter.acquire("key").into_future());
    assert!(poll_times(1, &mut probe).await.is_none());
    assert!(limiter.acquire("key").await.is_err());
    advance(PAUSE).await;
    assert!(limiter.acquire("key").await.unwrap().allowed());
    assert!(probe.await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_saturate() {
    let (faulty, longest) = (Faulty::default(), Duration::MAX);
    let stack =
        || Stack::new(faulty.clone()).timeout(longest).failure_threshold(1).cooldown(longest).denial_ttl(longest);
    let limiters: [(SharedStore, bool); 3] = [
        (Arc::new(stack().fail_open()), true),
        (Arc::new(stack().fail_closed()), false),
        (Arc::new(stack().fallback(MemoryStore::new())), true),
    ];
    for (store, allowed) in limiters {
        let limiter = Limiter::new("t", policy!("1/1h"), store);
        faulty.set(Does::Answer);
        let _ = limiter.acquire("key").await.unwrap();
        assert!(!limiter.acquire("key").await.unwrap().allowed());
        faulty.set(Does::Refuse);
        for key in ["first", "second"] {
            assert_eq!(limiter.acquire(key).await.unwrap().allowed(), allowed);
        }
    }
}

#[tokio::test]
async fn an_error_that_is_no_outage_passes_and_does_not_open_the_breaker() {
    let faulty = Faulty::default();
    faulty.set(Does::Corrupt);
    let breaker = CircuitBreaker::new(faulty.clone(), 1, PAUSE);
    let open = Limiter::new("t", policy!("9/1h"), Failsafe::open(breaker.clone()));
    let closed = Limiter::new("t", policy!("9/1h"), Failsafe::closed(breaker.clone(), PAUSE));
    for _ in 0..3 {
        assert_eq!(open.acquire("key").await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(closed.acquire("key").await.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(!breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn answers_at_once_end_an_outage_and_close_the_breaker() {
    let store = Prompt::default();
    let breaker = CircuitBreaker::new(store.clone(), 1, PAUSE);
    let open = Failsafe::open(store.clone());
    let fallback = Fallback::new(store.clone(), MemoryStore::new());
    let stores: [SharedStore; 3] = [Arc::new(breaker.clone()), Arc::new(open.clone()), Arc::new(fallback.clone())];
    let peek = async || {
        for store in &stores {
            let _ = Limiter::new("t", policy!("9/1h"), store.clone()).peek("key").await;
        }
    };
    store.faulty.set(Does::Refuse);
    peek().await;
    assert!(breaker.is_open() && open.in_outage() && fallback.in_outage());
    store.at_once.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        advance(PAUSE).await;
        peek().await;
    }
    assert!(!breaker.is_open() && !open.in_outage() && !fallback.in_outage());
}

/// Collects outages as text.
fn listener() -> (Arc<Mutex<Vec<String>>>, impl Fn(Outage<'_>) + Send + Sync + 'static) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&seen);
    let listen = move |outage: Outage<'_>| {
        shared.lock().unwrap().push(match outage {
            Outage::Began { node, error } => format!("{}began: {:?}", node.unwrap_or_default(), error.kind()),
            Outage::Ended { node, calls } => format!("{}ended: {calls}", node.unwrap_or_default()),
            _ => "other".to_owned(),
        });
    };
    (seen, listen)
}

#[tokio::test(start_paused = true)]
async fn each_node_has_its_own_outages() {
    let faulty = Faulty::default();
    let (seen, listen) = listener();
    let store = Failsafe::open(faulty.clone()).on_outage(listen);
    let limiter = Limiter::new("t", policy!("1000/1h"), store.clone());
    let call = async |node| assert!(limiter.acquire(format!("key@{node}")).await.unwrap().allowed());
    let took = || std::mem::take(&mut *seen.lock().unwrap());
    faulty.rule(|_, log| if log.key.ends_with(b"@a") { Does::Refuse } else { Does::Answer });
    for _ in 0..30 {
        for node in ["a", "b"] {
            call(node).await;
        }
        advance(Duration::from_millis(100)).await;
    }
    assert_eq!((took(), store.nodes()), (vec!["abegan: Unavailable".to_owned()], vec![(Some("a".into()), true)]));
    // It ends a second after the node's own first answer, whatever others do.
    faulty.rule(|_, log| if log.key.ends_with(b"@b") { Does::Refuse } else { Does::Answer });
    call("a").await;
    call("b").await;
    advance(PAUSE).await;
    call("a").await;
    assert_eq!(took(), ["bbegan: Unavailable", "aended: 30"]);
    // Nobody can call a node that left the store. Its outage ends with a call of another one.
    advance(Duration::from_secs(61)).await;
    assert!(store.in_outage());
    call("a").await;
    assert_eq!((took(), store.in_outage()), (vec!["bended: 1".to_owned()], false));
}

#[tokio::test(start_paused = true)]
async fn fail_open_admits_and_reports_each_outage_once() {
    let faulty = Faulty::default();
    let (seen, listen) = listener();
    let limiter = Limiter::new("t", policy!("2/1h, 9/1d"), Failsafe::open(faulty.clone()).on_outage(listen));
    assert!(limiter.acquire("key").cost(2).await.unwrap().allowed());
    assert!(!limiter.acquire("key").await.unwrap().allowed());
    faulty.set(Does::Refuse);
    for _ in 0..50 {
        let decision = limiter.acquire("key").await.unwrap();
        assert_eq!((decision.allowed(), decision.used(), decision.remaining()), (true, 1, 1));
    }
    let decision = limiter.peek("key").await.unwrap();
    assert_eq!((decision.allowed(), decision.used()), (true, 0));
    let recorded = limiter.record("key").cost(5).await.unwrap();
    assert_eq!((recorded.allowed(), recorded.remaining()), (false, 0));
    let receipt = limiter.acquire("key").await.unwrap().receipt().unwrap();
    let settled = limiter.settle("key", receipt, 2).await.unwrap();
    assert!(!settled.applied());
    assert_eq!(limiter.acquire("key").cost(3).await.unwrap_err().kind(), ErrorKind::CostExceedsLimit);
    assert_eq!(limiter.reset("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    faulty.set(Does::Answer);
    // A receipt from the outage names nothing.
    assert!(!limiter.refund("key", receipt).await.unwrap().applied());
    assert!(!limiter.acquire("key").await.unwrap().allowed());
    // The outage is over once the store has answered for a second, and a denial could be a denial cache's.
    advance(Duration::from_secs(2)).await;
    assert!(!limiter.acquire("key").await.unwrap().allowed());
    assert_eq!(*seen.lock().unwrap(), ["began: Unavailable"]);
    assert!(limiter.acquire("other").await.unwrap().allowed());
    assert_eq!(*seen.lock().unwrap(), ["began: Unavailable", "ended: 54"]);
}

#[tokio::test(start_paused = true)]
async fn fail_closed_denies_for_the_stated_time() {
    let faulty = Faulty::default();
    let (seen, listen) = listener();
    let store = Failsafe::closed(faulty.clone(), Duration::from_secs(2)).on_outage(listen);
    let limiter = Limiter::new("t", policy!("5/1h, 2/1s"), store.clone());
    faulty.set(Does::Refuse);
    let decision = limiter.acquire("key").await.unwrap();
    assert_eq!((decision.allowed(), decision.retry_after()), (false, Some(Duration::from_secs(2))));
    assert!(!limiter.peek("key").await.unwrap().allowed());
    assert_eq!(limiter.status("key").await.unwrap().remaining(), 0);
    assert_eq!(limiter.record("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    // A window shorter than the time bounds it.
    let short = Limiter::new("s", policy!("5/500ms"), store.clone());
    assert_eq!(short.acquire("key").await.unwrap().retry_after(), Some(Duration::from_millis(500)));
    let attempts = Limiter::new("a", policy!("5/1h").with_counting(limiter_core::Counting::Attempts), store);
    let attempt = attempts.acquire("key").await.unwrap();
    assert_eq!((attempt.allowed(), attempt.retry_after()), (false, Some(Duration::from_secs(2))));
    faulty.set(Does::Answer);
    for ended in [0, 1] {
        assert!(limiter.acquire("key").await.unwrap().allowed());
        assert_eq!(seen.lock().unwrap().len(), 1 + ended);
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_stack_answers_at_once_while_the_breaker_is_open() {
    let faulty = Faulty::default();
    let stack = Stack::new(faulty.clone()).timeout(Duration::from_millis(100)).failure_threshold(2).cooldown(PAUSE);
    let limiter = Limiter::new("t", policy!("3/1h"), stack.fail_open());
    faulty.set(Does::Hang);
    let start = Instant::now();
    for _ in 0..100 {
        assert!(limiter.acquire("key").await.unwrap().allowed());
    }
    assert_eq!(start.elapsed(), Duration::from_millis(200));
    let at_once = || attempt(limiter.store(), Op::acquire("key", limiter.policy()).with_name(limiter.name()));
    assert!(at_once().is_some());
    advance(PAUSE).await;
    assert!(at_once().is_none());
    faulty.set(Does::Answer);
    assert!(limiter.acquire("key").await.unwrap().allowed());
    assert_eq!(limiter.status("key").await.unwrap().used(), 1);
}
