//! One decision over several limiters.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use limiter_core::request::{AllOf, Background, Part, PartOutcome};
use limiter_core::{
    BoxFuture, Counting, Error, ErrorKind, Limiter, SharedStore, Timestamp, policy,
};
use limiter_testkit::ReferenceStore;

use crate::slow_store::{SlowStore, wait};

/// The stores of each case: one answers without waiting, one needs a future, and one makes several calls as one.
fn stores() -> [SharedStore; 3] {
    let prompt = SlowStore {
        tries: true,
        waits: [0, 0],
        ..SlowStore::default()
    };
    [Arc::new(prompt), Arc::new(SlowStore::default()), joining()]
}

fn joining() -> Arc<SlowStore> {
    Arc::new(SlowStore {
        joins: true,
        ..SlowStore::default()
    })
}

/// Two limiters, of 5 and of 2 units an hour.
fn limiters(store: &SharedStore) -> (Limiter, Limiter) {
    (
        Limiter::new("five", policy!("5/1h"), store.clone()),
        Limiter::new("two", policy!("2/1h"), store.clone()),
    )
}

fn failing() -> Limiter {
    Limiter::new(
        "failing",
        policy!("9/1h"),
        Arc::new(SlowStore {
            fails: true,
            ..SlowStore::default()
        }),
    )
}

fn used(limiter: &Limiter) -> u64 {
    block_on(limiter.status("k")).unwrap().used()
}

#[test]
fn all_are_charged_or_none_and_the_wait_is_the_longest() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let short = Limiter::new("short", policy!("1/1s"), store.clone());
        let calls = || {
            AllOf::new()
                .with(five.acquire("k").cost(2))
                .with(two.acquire("k"))
                .with(short.acquire("k"))
        };
        assert!(block_on(calls().decide()).unwrap());
        assert_eq!([used(&five), used(&two), used(&short)], [2, 1, 1]);
        assert!(block_on(two.acquire("k")).unwrap().allowed());
        let mut second = calls();
        assert!(!block_on(second.decide()).unwrap());
        assert!(
            second.retry_after().unwrap().as_secs() >= 3_590,
            "that of the second limiter"
        );
        let denies: Vec<bool> = second.parts().iter().map(Part::denies).collect();
        assert_eq!(denies, [false, true, true], "the third is asked as well");
        assert_eq!(
            second.parts()[0].status().unwrap().used(),
            2,
            "the refund is reported"
        );
        drop(second);
        assert_eq!([used(&five), used(&two), used(&short)], [2, 2, 1]);
    }
}

#[test]
fn an_error_charges_nothing_unless_it_is_tolerated() {
    for store in stores() {
        let ((five, two), broken) = (limiters(&store), failing());
        let calls = || {
            AllOf::new()
                .with(five.acquire("k"))
                .with(broken.acquire("k"))
                .with(two.acquire("k"))
        };
        // Both ways to decide refund.
        let error = block_on(calls().decide()).unwrap_err();
        assert_eq!(
            (error.kind(), error.limiter_name()),
            (ErrorKind::Unavailable, Some("failing"))
        );
        let mut refused = calls();
        assert!(!block_on(refused.decide_with(|_| false, pending())));
        assert_eq!([used(&five), used(&two)], [0, 0]);
        assert!(block_on(
            calls().decide_with(Error::is_retryable, pending())
        ));
        assert_eq!([used(&five), used(&two)], [1, 1]);
    }
}

#[test]
fn a_store_that_is_late_fails_and_all_are_refunded() {
    for store in stores() {
        let ((five, two), late) = (
            limiters(&store),
            Arc::new(SlowStore {
                waits: [99, 0],
                ..SlowStore::default()
            }),
        );
        let limiter: Limiter = Limiter::new("late", policy!("9/1h"), late.clone());
        let refunds: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
        let sink = Arc::clone(&refunds);
        let mut three = AllOf::new()
            .with(five.acquire("k"))
            .with(limiter.acquire("k"))
            .with(two.acquire("k"));
        three.refund_in(Background::new(move |refund| {
            sink.lock().unwrap().push(refund);
        }));
        let timeout = wait(9).map(|()| Error::new(ErrorKind::Timeout, "too late"));
        assert!(!block_on(three.decide_with(|_| false, timeout)));
        assert_eq!(three.take_error().unwrap().kind(), ErrorKind::Timeout);
        drop(three);
        // The late store's charge is refunded when it responds.
        block_on(join_all(std::mem::take(&mut *refunds.lock().unwrap())));
        assert_eq!([used(&five), used(&two), used(&limiter)], [0; 3]);
        assert_eq!(
            late.calls.load(Ordering::Relaxed),
            3,
            "the call, its refund and a status"
        );
    }
}

#[test]
fn a_denial_may_come_before_its_refunds() {
    let slow = Arc::new(SlowStore::default());
    let store: SharedStore = slow.clone();
    let (five, two) = limiters(&store);
    let refunds: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
    let sink = Arc::clone(&refunds);
    let mut denied = AllOf::new()
        .defer_refunds()
        .with(five.acquire("k"))
        .with(two.acquire("k").cost(2));
    denied.refund_in(Background::new(move |refund| {
        sink.lock().unwrap().push(refund);
    }));
    assert!(block_on(two.acquire("k")).unwrap().allowed());
    assert!(!block_on(denied.decide()).unwrap());
    assert_eq!(slow.calls.load(Ordering::Relaxed), 3, "no refund");
    assert_eq!(denied.parts()[0].status().unwrap().used(), 1);
    drop(denied);
    block_on(join_all(std::mem::take(&mut *refunds.lock().unwrap())));
    assert_eq!([used(&five), used(&two)], [0, 1]);
}

#[test]
fn advisory_calls_come_last_and_kept_charges_are_charged_once() {
    let broken = failing();
    for store in stores() {
        let (five, two) = limiters(&store);
        let trial = Limiter::new("trial", policy!("1/1h"), store.clone());
        let calls = || {
            let [trial, broken] =
                [trial.acquire("k"), broken.acquire("k")].map(|call| Part::from(call).advisory());
            let kept = Part::from(five.acquire("k")).keep_charge();
            AllOf::new()
                .with(trial)
                .with(two.acquire("k").cost(2))
                .with(kept)
                .with(broken)
        };
        assert!(block_on(two.acquire("k")).unwrap().allowed());
        let mut denied = calls();
        for _ in 0..3 {
            assert!(!block_on(denied.decide()).unwrap());
            denied.forget();
        }
        drop(denied);
        assert_eq!([used(&five), used(&two), used(&trial)], [1, 1, 0]);
        assert!(
            block_on(two.reset("k").into_future()).unwrap() && block_on(calls().decide()).unwrap()
        );
        assert_eq!([used(&five), used(&two), used(&trial)], [2, 2, 1]);
    }
}

#[test]
fn charges_that_nothing_refunds_have_no_receipts_under_a_resolution() {
    type Change = fn(Part<'_, SharedStore>) -> Part<'_, SharedStore>;
    const PLAIN: Change = |part| part;
    for ([waits, joins], store) in [[false, false], [true, false], [true, true]]
        .into_iter()
        .zip(stores())
    {
        let limiter = |name| Limiter::new(name, policy!("9/1h~1m"), store.clone());
        let (one, two) = (limiter("one"), limiter("two"));
        let cases: [(Change, Change, [bool; 2]); 4] = [
            // A drop while the second call is pending refunds both.
            (PLAIN, PLAIN, [true, waits]),
            (|part| part.keep_charge(), PLAIN, [false, waits]),
            (PLAIN, |part| part.keep_charge(), [true, false]),
            (PLAIN, |part| part.advisory(), [false, false]),
        ];
        for (first, second, expected) in cases {
            for refundable in [false, true] {
                let both = if refundable {
                    AllOf::new().refundable()
                } else {
                    AllOf::new()
                };
                let mut both = both
                    .with(first(one.acquire("k").into()))
                    .with(second(two.acquire("k").into()));
                assert!(block_on(both.decide()).unwrap());
                let receipts: Vec<bool> = both
                    .parts()
                    .iter()
                    .map(|part| part.permit().is_some())
                    .collect();
                assert_eq!(
                    receipts,
                    expected.map(|expected| (expected && !joins) || refundable)
                );
            }
        }
    }
}

#[test]
fn records_come_last_and_a_record_that_is_only_looked_up_neither_denies_nor_fails() {
    for store in stores() {
        let (five, two) = limiters(&store);
        for (cost, admitted, charges) in [(4, true, [4, 1]), (9, true, [5, 2]), (9, false, [5, 2])]
        {
            let mut both = AllOf::new()
                .with(five.record("k").cost(cost))
                .with(two.acquire("k"))
                .with(two.status("k"));
            assert_eq!(block_on(both.decide()).unwrap(), admitted);
            let record = both.parts()[0].outcome();
            assert_eq!(
                matches!(record, Some(PartOutcome::Uncharged(_))),
                !admitted,
                "{record:?}"
            );
            assert_eq!(both.parts()[2].status().unwrap().used(), charges[1]);
            assert_eq!([used(&five), used(&two)], charges);
            assert_eq!(
                block_on(five.status("k").policy(&policy!("99/1h")))
                    .unwrap()
                    .used(),
                cost
            );
        }
        // A record can fail, so until it is made the charges of others may be refunded.
        let (coarse, broken) = (
            Limiter::new("coarse", policy!("9/1h~1m"), store.clone()),
            failing(),
        );
        let mut both = AllOf::new()
            .with(broken.record("k"))
            .with(coarse.acquire("k"));
        assert!(block_on(both.decide()).is_err());
        assert_eq!(used(&coarse), 0);
    }
}

#[test]
fn calls_with_a_given_time_are_refunded_and_settled_at_that_time() {
    let at = |seconds: u64| Timestamp::from_micros_saturating(seconds * 1_000_000);
    for store in stores() {
        let (five, two) = limiters(&store);
        let used = |limiter: &Limiter, seconds| {
            block_on(limiter.status("k").at(at(seconds)))
                .unwrap()
                .used()
        };
        let calls = |cost| {
            AllOf::new()
                .with(five.acquire("k").cost(5).at(at(100)))
                .with(two.acquire("k").cost(cost).at(at(100)))
        };
        assert!(block_on(two.acquire("k").at(at(100))).unwrap().allowed());
        assert!(!block_on(calls(2).decide()).unwrap());
        assert_eq!(
            [used(&five, 100), used(&two, 100)],
            [0, 1],
            "all or nothing"
        );
        let mut settled = calls(1);
        assert!(block_on(settled.decide()).unwrap());
        assert!(block_on(settled.parts_mut()[0].settle(3)).unwrap());
        assert_eq!([used(&five, 100), used(&two, 100)], [3, 2]);
    }
}

#[test]
fn charges_are_settled_reset_and_moved_into_a_task() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let gold = Arc::new(policy!("50/1h"));
        let part = |cost| Part::from(two.acquire("k").cost(cost)).under(Arc::clone(&gold));
        let mut both = AllOf::new()
            .refundable()
            .with(five.acquire("k").cost(3))
            .with(part(2))
            .with(part(20))
            .into_owned();
        drop(gold);
        assert!(block_on(both.decide()).unwrap());
        let permit = both.parts()[1].permit().unwrap();
        assert_eq!(
            (permit.key(), permit.decision().remaining()),
            (&b"k"[..], 48)
        );
        assert!(block_on(both.parts_mut()[1].settle(1)).unwrap());
        assert_eq!(both.parts()[1].status().unwrap().remaining(), 29);
        // The limiter's policy does not admit 20 units, so their charge stays.
        assert!(
            both.parts()[2].permit().is_none() && !block_on(both.parts_mut()[2].settle(7)).unwrap()
        );
        assert!(block_on(both.parts_mut()[0].reset()).unwrap());
        assert_eq!(both.parts()[0].status().unwrap().used(), 0);
        drop(both);
        assert_eq!(
            [used(&five), used(&two)],
            [0, 2],
            "what was settled is kept"
        );
    }
}

#[test]
fn calls_that_go_together_are_one_call() {
    let joining = joining();
    let store: SharedStore = joining.clone();
    let (five, two) = limiters(&store);
    let attempts = Limiter::new(
        "attempts",
        policy!("2/1h").with_counting(Counting::Attempts),
        store.clone(),
    );
    let at = |micros| Timestamp::from_micros_saturating(micros);
    let calls = || {
        AllOf::new()
            .with(five.acquire("k"))
            .with(attempts.acquire("k"))
            .with(two.acquire("k").cost(2))
    };
    let record = || {
        AllOf::new()
            .with(five.record("r").cost(9))
            .with(two.acquire("k"))
    };
    let twice = || AllOf::new().with(five.acquire("a")).with(five.acquire("a"));
    let times = || {
        AllOf::new()
            .with(five.acquire("b").at(at(1)))
            .with(two.acquire("b").at(at(2)))
    };
    // The first that denies counts attempts, or does not.
    for (mut calls, admits, round_trips, expected) in [
        (calls(), true, 1, [1, 1, 2]),
        (calls(), false, 1, [1, 1, 2]),
        (record(), false, 1, [1, 1, 2]),
        (
            AllOf::new()
                .with(attempts.acquire("k").cost(2))
                .with(five.acquire("k")),
            false,
            1,
            [1, 2, 2],
        ),
        (twice(), true, 2, [1, 2, 2]),
        (times(), true, 2, [1, 2, 2]),
        (
            AllOf::new()
                .with(Part::from(five.acquire("k")).keep_charge())
                .with(two.acquire("k")),
            false,
            1,
            [2, 2, 2],
        ),
        (
            AllOf::new()
                .with(five.acquire("k").cost(6))
                .with(attempts.acquire("k").cost(1)),
            false,
            1,
            [2, 2, 2],
        ),
    ] {
        joining.calls.store(0, Ordering::Relaxed);
        assert_eq!(
            block_on(calls.decide()).unwrap_or(false),
            admits,
            "{calls:?}"
        );
        assert_eq!(
            joining.calls.load(Ordering::Relaxed),
            round_trips,
            "{calls:?}"
        );
        drop(calls);
        assert_eq!([used(&five), used(&attempts), used(&two)], expected);
    }
}

#[test]
fn a_wrapper_that_does_not_forward_and_another_wrapper_around_the_store_go_one_by_one() {
    let joining = joining();
    let reference = Arc::clone(&joining.reference);
    let half: SharedStore = Arc::new(SlowStore {
        reference,
        ..SlowStore::default()
    });
    let (five, two) = limiters(&half);
    let (five_here, two_there) = (limiters(&(joining.clone() as SharedStore)).0, two.clone());
    for (first, second) in [(&five, &two), (&five_here, &two_there)] {
        let calls = || {
            AllOf::new()
                .with(first.acquire("k"))
                .with(second.acquire("k"))
        };
        assert!(block_on(calls().decide()).unwrap());
        assert!(block_on(second.acquire("k")).unwrap().allowed());
        assert!(!block_on(calls().decide()).unwrap());
        assert_eq!([used(first), used(second)], [1, 2]);
        let reset = |limiter: &Limiter| block_on(limiter.reset("k").into_future()).unwrap();
        assert!(reset(first) && reset(second));
    }
}

#[test]
fn a_repetition_is_not_refunded() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let calls = |cost| {
            AllOf::new()
                .with(five.acquire("k").idempotency_key(7_u128))
                .with(two.acquire("k").cost(cost))
        };
        assert!(block_on(calls(2).decide()).unwrap());
        assert!(!block_on(calls(1).decide()).unwrap());
        assert_eq!([used(&five), used(&two)], [1, 2]);
    }
}

#[test]
fn concurrent_callers_exceed_no_limit_and_leave_no_charge() {
    let store: SharedStore = Arc::new(ReferenceStore::new());
    let (five, two) = limiters(&store);
    let admitted: usize = std::thread::scope(|scope| {
        let ask = || {
            let both = || AllOf::new().with(five.acquire("k")).with(two.acquire("k"));
            (0..100)
                .filter(|_| block_on(both().decide()).unwrap())
                .count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!([used(&five), used(&two)], [admitted as u64; 2]);
    assert_eq!(
        admitted, 2,
        "the later calls find the units that a refund gave back"
    );
}
