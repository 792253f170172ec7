//! The builders that a limiter's methods return, awaited and synchronous.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::slow_store::SlowStore;
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use limiter_core::{
    Decision, Error, ErrorKind, LimitStatus, Limiter, SharedStore, Timestamp, WindowStore,
    ceil_secs, policy,
};
use limiter_testkit::{Answer, ReferenceStore};

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Calls every method with every option.
async fn all_options<S: WindowStore>(limiter: &Limiter<S>) -> Result<Vec<Decision>, Error> {
    let gold = policy!("50/1s");
    let mut decisions = vec![
        limiter.acquire("k").at(at(0)).await?,
        limiter.acquire("k").cost(2).at(at(0)).await?,
        limiter.acquire("k").at(at(1)).await?,
        limiter.peek("k").cost(3).at(at(1)).await?,
        limiter
            .acquire("k")
            .policy(&gold)
            .cost(20)
            .idempotency_key(7)
            .at(at(2))
            .await?,
        limiter
            .acquire("k")
            .policy(&gold)
            .cost(20)
            .idempotency_key(7)
            .at(at(3))
            .await?,
        limiter.record("k").cost(5).at(at(2_000_000)).await?,
    ];
    // Above the limiter's policy, there is no receipt.
    assert_eq!(
        (
            decisions[4].is_allowed(),
            decisions[4].receipt(),
            decisions[5].receipt()
        ),
        (true, None, None)
    );
    let receipt = decisions[1].receipt().unwrap();
    let settled = limiter
        .settle("k", receipt, 3)
        .policy(&gold)
        .at(at(2_000_000))
        .await?;
    assert!(settled.applied());
    assert_eq!(
        (settled.status().used(), settled.status().limit().max()),
        (5, 50)
    );
    let settled = limiter.settle("k", receipt, 4).at(at(2_000_000)).await?;
    assert_eq!(
        settled
            .status()
            .limits()
            .iter()
            .map(LimitStatus::used)
            .collect::<Vec<_>>(),
        [3, 30]
    );
    assert!(
        limiter
            .refund("k", receipt)
            .at(at(2_000_000))
            .await?
            .applied()
    );
    let gone = limiter.refund("k", receipt).at(at(2_000_000)).await?;
    assert_eq!(
        (gone.applied(), gone.status().limits()[1].used()),
        (false, 26)
    );
    let status = limiter.status("k").at(at(2_000_000)).await?;
    assert_eq!(
        (&status, status.used(), status.remaining()),
        (gone.status(), 3, 0)
    );
    decisions.push(limiter.peek("k").at(at(2_000_000)).await?);
    assert!(limiter.reset("k").await?);
    assert!(!limiter.reset("k").await?);
    Ok(decisions)
}

#[test]
fn a_store_that_answers_at_once_and_one_that_needs_time_decide_alike() {
    let policy = policy!("3/1s, 100/1h");
    let now = Limiter::new("search", policy.clone(), ReferenceStore::new());
    let slow = Limiter::new("search", policy.clone(), SlowStore::default());
    let shared: SharedStore = Arc::new(SlowStore::default());
    let shared = Limiter::new("search", policy, shared);
    let answers = [
        block_on(all_options(&now)),
        block_on(all_options(&slow)),
        block_on(all_options(&shared)),
    ]
    .map(|decisions| {
        decisions
            .unwrap()
            .iter()
            .map(Answer::from)
            .collect::<Vec<_>>()
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    let allowed: Vec<bool> = answers[0].iter().map(|answer| answer.allowed).collect();
    assert_eq!(
        allowed,
        [true, true, false, false, true, true, false, false]
    );
    assert_eq!(slow.store().calls.load(Ordering::Relaxed), 15);
}

#[test]
fn without_a_future_the_answers_are_the_same() {
    let limiter = Limiter::new("search", policy!("3/1s"), ReferenceStore::new());
    let first = limiter.acquire("k").cost(2).at(at(0)).now().unwrap();
    let receipt = first.receipt().unwrap();
    assert_eq!(
        (
            first.used(),
            limiter
                .peek("k")
                .cost(2)
                .at(at(1))
                .now()
                .unwrap()
                .is_allowed()
        ),
        (2, false)
    );
    assert_eq!(
        limiter
            .settle("k", receipt, 1)
            .at(at(1))
            .now()
            .unwrap()
            .status()
            .used(),
        1
    );
    let record = limiter.record("k").cost(9).at(at(1)).now().unwrap();
    assert_eq!(
        (
            record.used(),
            record.fits(),
            record.is_allowed(),
            record.is_denied()
        ),
        (3, false, true, false)
    );
    assert!(record.into_result().is_ok(), "a record is never denied");
    assert_eq!(limiter.status("k").at(at(1)).now().unwrap().used(), 3);
    // The record alone reaches the maximum, so the older entry has been dropped.
    assert!(
        !limiter
            .refund("k", receipt)
            .at(at(1))
            .now()
            .unwrap()
            .applied()
    );
    assert_eq!(
        [
            limiter.reset("k").now().unwrap(),
            limiter.reset("k").now().unwrap()
        ],
        [true, false]
    );
}

#[test]
fn a_key_at_its_limit_is_no_denial_for_status() {
    let limiter = Limiter::new("search", policy!("1/1s, 1/10s"), ReferenceStore::new());
    assert!(limiter.acquire("k").at(at(0)).now().unwrap().is_allowed());
    let peek = limiter.peek("k").at(at(200_000)).now().unwrap();
    assert_eq!(
        (peek.retry_after_secs(), peek.limit().to_string()),
        (Some(10), "1/10s".to_owned())
    );
    // A denial is bound by the longest wait, a status by the least remaining.
    let status = limiter.status("k").at(at(200_000)).now().unwrap();
    assert_eq!(
        (status.remaining(), status.limit().to_string()),
        (0, "1/1s".to_owned())
    );
    let reset: Vec<u64> = status
        .limits()
        .iter()
        .map(|limit| ceil_secs(limit.reset_after()))
        .collect();
    assert_eq!((reset, ceil_secs(status.reset_after())), (vec![1, 10], 10));
    assert!(
        status
            .limits()
            .iter()
            .all(|limit| limit.retry_after().is_none())
    );
}

#[test]
fn a_cost_that_makes_no_sense_is_an_error_that_does_not_print_the_key() {
    let slow = Limiter::new("search", policy!("3/1s, 2/1h"), SlowStore::default());
    let now = Limiter::new("search", policy!("3/1s, 2/1h"), ReferenceStore::new());
    for (cost, kind, text) in [
        (
            0,
            ErrorKind::InvalidCost,
            "Acquire: the cost is 0, expected at least 1 (use peek to look without consuming)",
        ),
        (
            3,
            ErrorKind::CostExceedsLimit,
            "a cost of 3 can never fit the limit 2/1h, expected at most 2",
        ),
        (
            u64::MAX,
            ErrorKind::CostExceedsLimit,
            "a cost of 18446744073709551615 can never fit the limit 3/1s, expected at most 3",
        ),
    ] {
        for error in [
            block_on(slow.acquire("203.0.113.7").cost(cost)).unwrap_err(),
            block_on(now.acquire("203.0.113.7").cost(cost)).unwrap_err(),
            now.acquire("203.0.113.7").cost(cost).now().unwrap_err(),
            block_on(now.acquire("203.0.113.7").cost(cost).within(Duration::ZERO)).unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.key()),
                (kind, Some(&b"203.0.113.7"[..]))
            );
            assert_eq!(error.to_string(), format!("limiter \"search\": {text}"));
        }
    }
    assert!(
        now.record("k")
            .cost(u64::MAX)
            .now()
            .is_ok_and(|decision| !decision.fits())
    );
    assert_eq!(slow.store().calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_request_dropped_before_it_is_polled_does_nothing_and_many_can_be_joined() {
    let slow = Limiter::new("search", policy!("3/1h"), SlowStore::default());
    drop(slow.acquire("k"));
    let allowed = block_on(join_all((0..5).map(|_| slow.acquire("k"))));
    assert_eq!(
        allowed
            .into_iter()
            .filter(|decision| decision.as_ref().unwrap().is_allowed())
            .count(),
        3
    );
    assert_eq!(slow.store().calls.load(Ordering::Relaxed), 5);
}

#[test]
fn a_shared_store_is_not_wrapped_again_and_needs_one_poll_if_it_answers_at_once() {
    let store: SharedStore = Arc::new(ReferenceStore::new());
    let limiter = Limiter::new("search", policy!("5/1s"), Arc::clone(&store));
    assert!(Arc::ptr_eq(limiter.into_shared().store(), &store));
    let limiter = Limiter::new("search", policy!("5/1s"), ReferenceStore::new()).into_shared();
    assert!(
        limiter
            .acquire("k")
            .now_or_never()
            .unwrap()
            .unwrap()
            .is_allowed()
    );
}
