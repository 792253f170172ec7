//! The builders that a limiter's methods return, awaited and synchronous.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::slow_store::SlowStore;
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use limiter_core::{
    Decision, Error, ErrorKind, LimitStatus, Limiter, SharedStore, Timestamp, WindowStore, policy,
};
use limiter_testkit::{DecisionValues, ReferenceStore};

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Calls every method with every option.
async fn all_options<S: WindowStore>(limiter: &Limiter<S>) -> Result<Vec<DecisionValues>, Error> {
    let gold = policy!("50/1s");
    let later = at(2_000_000);
    let golden = |micros| {
        let acquire = limiter.acquire("k").policy(&gold).cost(20);
        acquire.idempotency_key(7).at(at(micros))
    };
    let used = |limit: &LimitStatus| limit.used();
    let mut decisions: Vec<Decision> = vec![
        limiter.acquire("k").at(at(0)).await?,
        limiter.acquire("k").cost(2).at(at(0)).await?,
        limiter.acquire("k").at(at(1)).await?,
        limiter.peek("k").cost(3).at(at(1)).await?,
        golden(2).await?,
        golden(3).await?,
        limiter.record("k").cost(5).at(later).await?,
    ];
    assert!(decisions[6].is_allowed() && !decisions[6].is_denied());
    let record = decisions[6].clone();
    assert!(record.into_result().is_ok(), "a record is never denied");
    // Above the limiter's policy, there is no receipt.
    let receipts = [4, 5].map(|i: usize| decisions[i].receipt());
    assert_eq!((decisions[4].is_allowed(), receipts), (true, [None; 2]));
    let receipt = decisions[1].receipt().unwrap();
    let settle = limiter.settle("k", receipt, 3).policy(&gold);
    let settled = settle.at(later).await?;
    let status = settled.status();
    assert!(settled.applied());
    assert_eq!((status.used(), status.limit().max()), (5, 50));
    let settled = limiter.settle("k", receipt, 4).at(later).await?;
    let usages: Vec<u64> = settled.status().limits().iter().map(used).collect();
    assert_eq!(usages, [3, 30]);
    let refund = || limiter.refund("k", receipt).at(later).into_future();
    assert!(refund().await?.applied());
    let gone = refund().await?;
    assert!(!gone.applied());
    let status = limiter.status("k").at(later).await?;
    assert_eq!(&status, gone.status());
    assert_eq!(status.remaining(), 0);
    assert_eq!(
        status.limits().iter().map(used).collect::<Vec<_>>(),
        [3, 26]
    );
    decisions.push(limiter.peek("k").at(later).await?);
    assert!(limiter.reset("k").await?);
    assert!(!limiter.reset("k").await?);
    Ok(decisions.iter().map(DecisionValues::from).collect())
}

#[test]
fn a_store_that_answers_at_once_and_one_that_needs_time_decide_alike() {
    let policy = policy!("3/1s, 100/1h");
    let now = Limiter::new("search", policy.clone(), ReferenceStore::new());
    let slow = Limiter::new("search", policy.clone(), SlowStore::default());
    let shared: SharedStore = Arc::new(SlowStore::default());
    let shared = Limiter::new("search", policy, shared);
    let answers = block_on(all_options(&now)).unwrap();
    assert_eq!(answers, block_on(all_options(&slow)).unwrap());
    assert_eq!(answers, block_on(all_options(&shared)).unwrap());
    let allowed = [true, true, false, false, true, true, false, false];
    assert!(answers.iter().map(|values| values.fits).eq(allowed));
    assert_eq!(slow.store().calls.load(Ordering::Relaxed), 15);
}

#[test]
fn a_cost_that_makes_no_sense_is_an_error_that_does_not_print_the_key() {
    let slow = Limiter::new("search", policy!("3/1s, 2/1h"), SlowStore::default());
    let now = Limiter::new("search", policy!("3/1s, 2/1h"), ReferenceStore::new());
    let key = "203.0.113.7";
    let never = ErrorKind::CostExceedsLimit;
    for (cost, kind, text) in [
        (
            0,
            ErrorKind::InvalidCost,
            "Acquire: the cost is 0, expected at least 1 (use peek to look without consuming)",
        ),
        (
            3,
            never,
            "a cost of 3 can never fit the limit 2/1h, expected at most 2",
        ),
        (
            u64::MAX,
            never,
            "a cost of 18446744073709551615 can never fit the limit 3/1s, expected at most 3",
        ),
    ] {
        for result in [
            block_on(slow.acquire(key).cost(cost)),
            block_on(now.acquire(key).cost(cost)),
            now.acquire(key).cost(cost).now(),
            block_on(now.acquire(key).cost(cost).within(Duration::ZERO)),
        ] {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.key()), (kind, Some(key.as_bytes())));
            assert_eq!(error.to_string(), format!("limiter \"search\": {text}"));
        }
    }
    let record = now.record("k").cost(u64::MAX).now();
    assert!(!record.unwrap().fits());
    assert_eq!(slow.store().calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_request_dropped_before_it_is_polled_does_nothing_and_many_can_be_joined() {
    let slow = Limiter::new("search", policy!("3/1h"), SlowStore::default());
    drop(slow.acquire("k"));
    let decisions = block_on(join_all((0..5).map(|_| slow.acquire("k"))));
    let allowed = decisions
        .iter()
        .flatten()
        .filter(|decision| decision.is_allowed());
    assert_eq!(allowed.count(), 3);
    assert_eq!(slow.store().calls.load(Ordering::Relaxed), 5);
}

#[test]
fn a_shared_store_is_not_wrapped_again_and_needs_one_poll_if_it_answers_at_once() {
    let store: SharedStore = Arc::new(ReferenceStore::new());
    let limiter = Limiter::new("search", policy!("5/1s"), Arc::clone(&store));
    assert!(Arc::ptr_eq(limiter.into_shared().store(), &store));
    let limiter = Limiter::new("search", policy!("5/1s"), ReferenceStore::new()).into_shared();
    let decision = limiter.acquire("k").now_or_never().unwrap();
    assert!(decision.unwrap().is_allowed());
}
