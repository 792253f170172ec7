//! Permits: settling, refunding and dropping an admitted acquire.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::slow_store::SlowStore;
use futures::executor::block_on;
use limiter_core::{
    Clock, Error, ErrorKind, Limiter, Permit, Policy, Settled, SyncStore, Timestamp, WindowStore,
    WithClock, policy,
};
use limiter_testkit::{MockClock, ReferenceStore};

static GOLD: Policy = policy!("100/1s");

fn chat() -> Limiter<ReferenceStore> {
    Limiter::new("chat", policy!("10/1h"), ReferenceStore::new())
}

/// A limiter with its own mock clock.
fn timed(policy: Policy) -> (MockClock, Limiter<WithClock<ReferenceStore, MockClock>>) {
    let clock = MockClock::new();
    let store = WithClock::new(ReferenceStore::new(), clock.clone());
    (clock, Limiter::new("chat", policy, store))
}

fn permit<S: SyncStore>(limiter: &Limiter<S>, cost: u64) -> Permit<'_, S> {
    let acquire = limiter.acquire("k").cost(cost).permit();
    acquire.now().unwrap().into_result().unwrap()
}

fn used<S: WindowStore>(limiter: &Limiter<S>) -> u64 {
    block_on(limiter.status("k")).unwrap().used()
}

/// Whether it applied, whether it recorded instead, and the usage afterwards.
fn seen(settled: Result<Settled, Error>) -> (bool, bool, u64) {
    let settled = settled.unwrap();
    let used = settled.status().used();
    (settled.applied(), settled.recorded(), used)
}

#[test]
fn an_admitted_acquire_is_settled_and_refunded_and_a_denied_one_is_a_decision() {
    async fn check<S: WindowStore>(store: S) {
        let limiter = Limiter::new("chat", policy!("10/1h"), store);
        let acquire = async |cost| limiter.acquire("k").cost(cost).permit().await;
        let permit = acquire(8).await.unwrap().into_result().unwrap();
        assert_eq!((permit.key(), permit.decision().used()), (&b"k"[..], 8));
        let denied = acquire(8).await.unwrap();
        assert!(denied.decision().is_denied());
        assert!(!denied.into_result().unwrap_err().retry_after().is_zero());
        for actual in [3, 5, 4] {
            assert_eq!(seen(permit.settle(actual).await), (true, false, actual));
        }
        assert_eq!(seen(permit.refund().await), (true, false, 0));
        assert_eq!(seen(permit.refund().await), (false, false, 0));
        assert!(acquire(11).await.is_err());
    }
    block_on(check(ReferenceStore::new()));
    block_on(check(SlowStore::default()));
    let limiter = chat();
    drop(permit(&limiter, 1));
    assert_eq!(used(&limiter), 1, "dropping a permit keeps the charge");
}

#[test]
fn a_permit_settles_by_the_policy_of_its_acquire() {
    let limiter = chat();
    let acquire = |cost| {
        let acquire = limiter.acquire("k").policy(&GOLD).cost(cost).permit();
        acquire.now().unwrap().into_result().unwrap()
    };
    let permit = acquire(5);
    assert_eq!(permit.settle(2).now().unwrap().status().remaining(), 98);
    assert_eq!(used(&limiter), 2);
    // The default policy counts the entry for an hour, so the receipt is valid for an hour.
    assert_eq!(permit.receipt().unwrap().window().to_string(), "1h");
    // Above the default policy, there is no receipt, and the charge stays.
    let permit = acquire(11);
    assert_eq!(permit.receipt(), None);
    assert_eq!(permit.decision().receipt(), None);
    let or_record = permit.settle_or_record(2);
    for settlement in [permit.settle(2), permit.refund(), or_record] {
        assert_eq!(seen(settlement.now()), (false, false, 13));
    }
    let refunded = block_on(permit.refund().into_future());
    assert_eq!(seen(refunded), (false, false, 13));
}

#[test]
fn a_permit_lasts_as_long_as_an_exact_limit_counts_its_acquire() {
    let (clock, limiter) = timed(policy!("10/10m, 10/1h~1m"));
    let permit = permit(&limiter, 3);
    assert_eq!(permit.receipt().unwrap().window().to_string(), "10m");
    clock.advance(Duration::from_secs(599));
    assert_eq!(seen(permit.settle(5).now()), (true, false, 5));
    clock.advance(Duration::from_secs(1));
    assert_eq!(seen(permit.refund().now()), (false, false, 5));
    // The acquire still counts, so a record would count twice.
    assert_eq!(seen(permit.settle_or_record(2).now()), (false, false, 5));
    clock.advance(Duration::from_secs(3000));
    assert_eq!(seen(permit.settle_or_record(2).now()), (false, true, 2));
}

#[test]
fn without_an_exact_limit_permits_and_ids_are_errors_before_the_store_is_asked() {
    let limiter = Limiter::new("chat", policy!("10/1h~1m, 5/10m~1m"), SlowStore::default());
    let own = policy!("9/1h~1h");
    let errors = [
        block_on(limiter.acquire("k").permit()).unwrap_err(),
        block_on(limiter.acquire("k").policy(&own).permit()).unwrap_err(),
        block_on(limiter.acquire("k").permit().within(Duration::MAX)).unwrap_err(),
        block_on(limiter.acquire("k").idempotency_key(7)).unwrap_err(),
        block_on(limiter.record("k").idempotency_key(7)).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NeedsExactLimit);
        assert_eq!(
            error.to_string(),
            "limiter \"chat\": permits and idempotency keys need an exact limit: add one whose window is as long as the call \
             takes, such as `60000/10m`"
        );
    }
    assert_eq!(limiter.store().calls.load(Ordering::Relaxed), 0);
    // A peek ignores the key, and others have no receipt. An exact limit of either policy is enough.
    let limiter = Limiter::new("chat", policy!("10/1h~1m"), ReferenceStore::new());
    let peek = limiter.peek("k").idempotency_key(7).now();
    assert!(peek.unwrap().is_allowed());
    assert_eq!(limiter.acquire("k").now().unwrap().receipt(), None);
    let permit = limiter.acquire("k").policy(&GOLD).permit().now().unwrap();
    let permit = permit.into_result().unwrap();
    assert!(permit.refund().now().unwrap().applied());
}

#[test]
fn settle_or_record_charges_work_that_took_longer_than_the_window() {
    let (clock, limiter) = timed(policy!("10/1m"));
    let late = permit(&limiter, 2);
    let in_time = late.settle_or_record(5).now();
    assert_eq!(seen(in_time), (true, false, 5));
    clock.advance(Duration::from_secs(60));
    assert_eq!(seen(late.settle(5).now()), (false, false, 0));
    let recorded = late.settle_or_record(6).at(clock.now());
    let recorded = block_on(recorded.into_future());
    assert_eq!(seen(recorded), (false, true, 6));
    // A refunded or reset entry stays removed.
    let refunded = permit(&limiter, 2);
    assert!(refunded.refund().now().unwrap().applied());
    assert_eq!(seen(refunded.settle_or_record(3).now()), (false, false, 6));
}

#[test]
fn a_permit_settles_at_the_given_time_of_its_acquire_or_later() {
    let yesterday =
        |seconds: u64| Timestamp::from_micros_saturating((1_700_000_000 + seconds) * 1_000_000);
    let limiter = Limiter::new("chat", policy!("10/1m"), ReferenceStore::new());
    let acquire = limiter.acquire("k").cost(8).at(yesterday(0)).permit();
    let permit = acquire.now().unwrap().into_result().unwrap();
    assert!(permit.settle(5).now().unwrap().applied());
    let settled = permit.settle_or_record(4).at(yesterday(59)).now();
    assert_eq!(seen(settled), (true, false, 4));
    // A record in place of an expired entry also stays in yesterday.
    let recorded = permit.settle_or_record(3).at(yesterday(60)).now();
    assert_eq!(seen(recorded), (false, true, 3));
    let settled = permit.clone().into_owned().settle_or_record(2).now();
    assert_eq!(settled.as_ref().unwrap().status().at(), yesterday(60));
    assert_eq!(seen(settled), (false, true, 5));
}

#[test]
fn an_instalment_has_its_acquires_key_policy_and_time_and_its_own_entry() {
    let limiter = chat();
    let at = Timestamp::from_micros_saturating(1_700_000_000_000_000);
    let first = limiter.acquire("k").policy(&GOLD).idempotency_key(7).at(at);
    let first = first.cost(9).permit().now().unwrap().into_result().unwrap();
    for used in [11, 13] {
        let more = first.acquire_more(2).now().unwrap();
        assert_eq!(
            (more.used(), more.limit().max(), more.at()),
            (used, 100, at)
        );
    }
    assert!(first.acquire_more(0).now().is_err());
    assert!(first.acquire_more(88).now().unwrap().is_denied());
}
