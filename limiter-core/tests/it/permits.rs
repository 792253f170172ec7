//! Permits: settling, refunding and dropping an admitted acquire.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::slow_store::SlowStore;
use futures::executor::block_on;
use limiter_core::{BoxFuture, Clock, Error, Limiter, Settled, SyncStore, Timestamp, WindowStore, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};

fn used<S: SyncStore>(limiter: &Limiter<S>) -> u64 {
    limiter.status("k").now().unwrap().used()
}

#[test]
fn an_admitted_acquire_is_settled_and_refunded_and_a_denied_one_is_a_decision() {
    async fn check<S: WindowStore>(limiter: Limiter<S>) {
        let permit = limiter.acquire("k").cost(8).permit().await.unwrap().unwrap();
        assert_eq!((permit.key(), permit.decision().used(), permit.limiter().name().as_str()), (&b"k"[..], 8, "chat"));
        let denied = limiter.acquire("k").cost(8).permit().await.unwrap().unwrap_err();
        assert!(denied.retry_after().is_some());
        for actual in [3, 5, 4] {
            let settled = permit.settle(actual).await.unwrap();
            assert_eq!((settled.applied(), settled.status().used()), (true, actual));
        }
        assert!(permit.refund().await.unwrap().applied());
        assert!(!permit.refund().await.unwrap().applied());
        assert_eq!(limiter.status("k").await.unwrap().used(), 0);
        assert!(limiter.acquire("k").cost(11).permit().await.is_err());
    }
    block_on(check(Limiter::new("chat", policy!("10/1h"), ReferenceStore::new())));
    block_on(check(Limiter::new("chat", policy!("10/1h"), SlowStore::default())));
}

#[test]
fn dropping_a_permit_keeps_the_charge() {
    let limiter = Limiter::new("chat", policy!("10/1h"), ReferenceStore::new());
    drop(limiter.acquire("k").permit().now().unwrap().unwrap());
    assert_eq!(used(&limiter), 1);
}

#[test]
fn a_permit_settles_by_the_policy_of_its_acquire() {
    let gold = policy!("100/1s");
    let limiter = Limiter::new("chat", policy!("10/1h"), ReferenceStore::new());
    let permit = limiter.acquire("k").policy(&gold).cost(5).permit().now().unwrap().unwrap();
    assert_eq!(permit.settle(2).now().status().remaining(), 98);
    // The default policy counts the entry for an hour, so the receipt is valid for an hour.
    assert_eq!((used(&limiter), permit.receipt().unwrap().window().to_string()), (2, "1h".to_owned()));
}

#[test]
fn a_permit_above_the_default_policy_keeps_its_charge() {
    async fn check<S: WindowStore + Clone>(store: S) {
        let (gold, limiter) = (policy!("100/1s"), Limiter::new("chat", policy!("10/1h"), store));
        let permit = limiter.acquire("k").policy(&gold).cost(11).permit().await.unwrap().unwrap();
        assert_eq!((permit.receipt(), permit.decision().receipt()), (None, None));
        for settlement in [permit.settle(2), permit.refund(), permit.settle_or_record(2)] {
            let settled = settlement.await.unwrap();
            assert_eq!((settled.applied(), settled.recorded(), settled.status().used()), (false, false, 11));
        }
    }
    block_on(check(Arc::new(ReferenceStore::new())));
    block_on(check(Arc::new(SlowStore::default())));
    let limiter = Limiter::new("chat", policy!("10/1h"), ReferenceStore::new());
    let gold = policy!("100/1s");
    let permit = limiter.acquire("k").policy(&gold).cost(11).permit().now().unwrap().unwrap();
    assert_eq!((permit.refund().now().applied(), permit.settle(2).now().status().remaining()), (false, 89));
}

#[test]
fn under_a_resolution_permits_and_ids_have_receipts() {
    let clock = MockClock::new();
    let limiter = Limiter::new("chat", policy!("10/1h~1m"), WithClock::new(ReferenceStore::new(), clock.clone()));
    let decision = limiter.acquire("k").now().unwrap();
    assert!(decision.appended() && decision.receipt().is_none());
    assert!(limiter.record("k").idempotency_key(7).now().unwrap().receipt().is_some());
    let permit = limiter.acquire("k").cost(3).permit().now().unwrap().unwrap();
    assert_eq!(permit.receipt().unwrap().window().to_string(), "10m");
    assert_eq!((permit.settle(5).now().applied(), used(&limiter)), (true, 7));
    clock.advance(Duration::from_secs(600));
    assert_eq!((permit.refund().now().applied(), used(&limiter)), (false, 7));
    // The acquire still counts, so a record would count twice.
    assert_eq!((permit.settle_or_record(2).now().recorded(), used(&limiter)), (false, 7));
    clock.advance(Duration::from_secs(3000));
    assert_eq!((permit.settle_or_record(2).now().recorded(), used(&limiter)), (true, 2));
}

#[test]
fn a_permit_moves_into_a_thread() {
    let limiter = Limiter::new("chat", policy!("10/1h"), Arc::new(ReferenceStore::new()));
    let gold = policy!("100/1s");
    let long = "a key that is longer than what is held in place".to_owned();
    let permit = limiter.acquire(&long).policy(&gold).permit().now().unwrap().unwrap().into_owned();
    drop((gold, long.clone()));
    std::thread::spawn(move || assert!(permit.settle(4).now().applied())).join().unwrap();
    assert_eq!(limiter.status(&long).now().unwrap().used(), 4);
}

#[test]
fn refund_on_drop_refunds_unless_it_is_confirmed() {
    let limiter = Limiter::new("chat", policy!("10/1h"), ReferenceStore::new());
    let acquire = || limiter.acquire("k").permit().now().unwrap().unwrap().refund_on_drop();
    let first = acquire();
    assert_eq!(used(&limiter), 1);
    drop(first);
    assert_eq!(used(&limiter), 0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _permit = acquire();
        panic!("the work failed");
    }));
    assert!(panicked.is_err());
    assert_eq!(used(&limiter), 0);
    let kept = acquire();
    assert!(kept.settle(3).now().applied());
    kept.confirm();
    assert_eq!(used(&limiter), 3);
}

#[test]
fn refund_on_drop_spawns_the_refund_for_other_stores() {
    let store = Arc::new(SlowStore::default());
    let limiter = Limiter::new("chat", policy!("10/1h"), Arc::clone(&store));
    let (send, refunds) = std::sync::mpsc::channel::<BoxFuture<'static, Result<(), Error>>>();
    let acquire = || {
        let (permit, send) = (block_on(limiter.acquire("k").permit()).unwrap().unwrap(), send.clone());
        permit.refund_on_drop_with(move |refund| send.send(refund).unwrap())
    };
    drop(acquire());
    let used = || block_on(limiter.status("k")).unwrap().used();
    assert_eq!(used(), 1, "nothing has run the refund yet");
    block_on(refunds.try_recv().unwrap()).unwrap();
    assert_eq!(used(), 0);
    acquire().confirm();
    assert!(refunds.try_recv().is_err());
    assert_eq!(used(), 1);
}

/// The example in the documentation of `Permit`: four concurrent logins, and a hundred concurrent guesses.
#[test]
fn acquiring_first_and_peeking_first_differ_when_calls_overlap() {
    let failures = policy!("3/1m");
    let login = Limiter::new("login", failures.clone(), ReferenceStore::new());
    let permits: Vec<_> = (0..4).filter_map(|_| login.acquire("ann").permit().now().unwrap().ok()).collect();
    assert_eq!(permits.len(), 3, "the fourth correct login is denied");
    permits.iter().for_each(|permit| assert!(permit.refund().now().applied()));
    assert!(login.acquire("ann").now().unwrap().allowed());

    let login = Limiter::new("login", failures, ReferenceStore::new());
    let guesses = (0..100).filter(|_| login.peek("ann").now().unwrap().allowed()).count();
    (0..guesses).for_each(|_| assert!(login.record("ann").now().is_ok()));
    assert_eq!(guesses, 100, "every guess is tried before one is counted");
    assert!(!login.peek("ann").now().unwrap().allowed());
}

#[test]
fn settle_or_record_charges_work_that_took_longer_than_the_window() {
    let clock = MockClock::new();
    let limiter = Limiter::new("chat", policy!("10/1m"), WithClock::new(ReferenceStore::new(), clock.clone()));
    let acquire = || limiter.acquire("k").cost(2).permit().now().unwrap().unwrap();
    // In time, it settles.
    let permit = acquire();
    let settled = permit.settle_or_record(5).now();
    assert_eq!((settled.applied(), settled.recorded(), settled.status().used()), (true, false, 5));
    // Too late, it records, and a settlement has no effect.
    clock.advance(Duration::from_secs(60));
    assert!(!permit.settle(5).now().applied());
    let settled = block_on(permit.settle_or_record(6).at(clock.now())).unwrap();
    assert_eq!((settled.applied(), settled.recorded(), settled.status().used()), (false, true, 6));
    // What was refunded or reset stays so.
    let permit = acquire();
    assert!(permit.refund().now().applied());
    let settled = permit.settle_or_record(3).now();
    assert_eq!((settled.applied(), settled.recorded(), settled.status().used()), (false, false, 6));
}

#[test]
fn a_permit_settles_at_the_given_time_of_its_acquire_or_later() {
    let yesterday = |seconds: u64| Timestamp::from_micros_saturating(1_700_000_000_000_000 + seconds * 1_000_000);
    let limiter = Limiter::new("chat", policy!("10/1m"), ReferenceStore::new());
    let permit = limiter.acquire("k").cost(8).at(yesterday(0)).permit().now().unwrap().unwrap();
    assert!(permit.settle(5).now().applied());
    assert!(block_on(permit.settle_or_record(4).at(yesterday(59))).unwrap().applied());
    // What is recorded instead of an expired entry stays in yesterday, too.
    let settled = block_on(permit.settle_or_record(3).at(yesterday(60))).unwrap();
    assert_eq!((settled.recorded(), settled.status().at(), settled.status().used()), (true, yesterday(60), 3));
    let settled = permit.into_owned().settle_or_record(2).now();
    assert_eq!((settled.recorded(), settled.status().at(), settled.status().used()), (true, yesterday(60), 5));
}

#[test]
fn settle_on_drop_charges_what_was_used_by_then() {
    let store = Arc::new(SlowStore::default());
    let limiter = Limiter::new("chat", policy!("10/1h"), Arc::clone(&store));
    let (send, settlements) = std::sync::mpsc::channel::<BoxFuture<'static, Result<Settled, Error>>>();
    let tokens = Arc::new(AtomicU64::new(0));
    let permit = block_on(limiter.acquire("k").cost(8).permit()).unwrap().unwrap();
    let guard = permit.settle_on_drop(Arc::clone(&tokens), move |settle| send.send(settle).unwrap());
    tokens.fetch_add(3, Ordering::Relaxed);
    drop(guard);
    assert!(block_on(settlements.try_recv().unwrap()).unwrap().applied());
    assert_eq!(block_on(limiter.status("k")).unwrap().used(), 3);
}
