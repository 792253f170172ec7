//! One decision over several limiters.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use futures::executor::block_on;
use limiter_core::request::{AllOf, JointDecision, Part, PartOutcome, joint};
use limiter_core::{Counting, Error, ErrorKind, Limiter, Permit, SharedStore, Timestamp, policy};
use limiter_testkit::ReferenceStore;

use crate::slow_store::SlowStore;

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
    let store = SlowStore {
        fails: true,
        ..SlowStore::default()
    };
    Limiter::new("failing", policy!("9/1h"), Arc::new(store))
}

fn used(limiter: &Limiter) -> u64 {
    block_on(limiter.status("k")).unwrap().used()
}

fn decided<'a>(calls: AllOf<'a>) -> Result<JointDecision<'a>, Error> {
    block_on(calls.into_future())
}

/// Whether all calls admit. A failure is none.
fn admits(calls: AllOf<'_>) -> bool {
    !decided(calls).unwrap().is_denied()
}

fn kept<'a>(part: impl Into<Part<'a, SharedStore>>) -> Part<'a, SharedStore> {
    part.into().keep_charge()
}

fn failing_open<'a>(
    part: impl Into<Part<'a, SharedStore>>,
    fails_open: bool,
) -> Part<'a, SharedStore> {
    let part = part.into();
    if fails_open { part.fail_open() } else { part }
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
        assert!(admits(calls()));
        assert_eq!([used(&five), used(&two), used(&short)], [2, 1, 1]);
        assert!(block_on(two.acquire("k")).unwrap().is_allowed());
        let second = decided(calls()).unwrap();
        assert!(
            second.retry_after().unwrap().as_secs() >= 3_590,
            "that of the second limiter"
        );
        let denies: Vec<bool> = second.parts().iter().map(Part::denies).collect();
        assert_eq!(denies, [false, true, true], "the third is asked as well");
        let first = second.parts()[0].status().unwrap();
        assert_eq!(first.used(), 2, "the refund is reported");
        let denied = second.into_result().unwrap_err();
        let names: Vec<&str> = denied.denials().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["two", "short"]);
        let text = denied.to_string();
        assert!(
            text.starts_with("two: the limit 2/1h is exceeded; retry after 3"),
            "{text}"
        );
        assert_eq!([used(&five), used(&two), used(&short)], [2, 2, 1]);
    }
}

#[test]
fn an_error_charges_nothing_unless_the_part_fails_open() {
    for store in stores() {
        let ((five, two), broken) = (limiters(&store), failing());
        let calls = |fails_open| {
            AllOf::new()
                .with(five.acquire("k"))
                .with(failing_open(broken.acquire("k"), fails_open))
                .with(two.acquire("k"))
        };
        let error = decided(calls(false)).unwrap_err();
        assert_eq!(
            (error.kind(), error.limiter_name()),
            (ErrorKind::Unavailable, Some("failing"))
        );
        assert_eq!([used(&five), used(&two)], [0, 0]);
        assert!(admits(calls(true)));
        assert_eq!([used(&five), used(&two)], [1, 1]);
        // What can never fit is no failure of the store.
        let never = failing_open(two.acquire("k").cost(3), true);
        let calls = AllOf::new().with(five.acquire("k")).with(never);
        assert_eq!(
            decided(calls).unwrap_err().kind(),
            ErrorKind::CostExceedsLimit
        );
        assert_eq!([used(&five), used(&two)], [1, 1]);
    }
}

#[test]
#[cfg(feature = "tokio")]
fn a_store_that_is_late_fails_and_the_others_are_refunded() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    for store in stores() {
        let (five, two) = limiters(&store);
        let hanging = SlowStore {
            waits: [u32::MAX, 0],
            ..SlowStore::default()
        };
        let late = Limiter::new("late", policy!("9/1h"), Arc::new(hanging) as SharedStore);
        let calls = || {
            let three = AllOf::new()
                .with(five.acquire("k"))
                .with(late.acquire("k"))
                .with(two.acquire("k"));
            three.timeout(std::time::Duration::from_millis(50))
        };
        let error = runtime.block_on(calls().into_future()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!([used(&five), used(&two)], [0; 2]);
        // Without a runtime there is no timeout, so a store must not wait.
        let error = block_on(calls().into_future()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
}

#[test]
fn advisory_calls_come_last_and_kept_charges_stay() {
    let broken = failing();
    for store in stores() {
        let (five, two) = limiters(&store);
        let trial = Limiter::new("trial", policy!("1/1h"), store.clone());
        let calls = || {
            let [trial, broken] = [trial.acquire("k"), broken.acquire("k")]
                .map(|acquire| Part::from(acquire).advisory());
            let kept = kept(five.acquire("k"));
            AllOf::new()
                .with(trial)
                .with(two.acquire("k").cost(2))
                .with(kept)
                .with(broken)
        };
        assert!(block_on(two.acquire("k")).unwrap().is_allowed());
        assert!(!admits(calls()));
        assert_eq!([used(&five), used(&two), used(&trial)], [1, 1, 0]);
        assert!(block_on(two.reset("k").into_future()).unwrap() && admits(calls()));
        assert_eq!([used(&five), used(&two), used(&trial)], [2, 2, 1]);
    }
}

#[test]
fn records_come_last_and_a_record_that_is_only_looked_up_neither_denies_nor_fails() {
    for store in stores() {
        let (five, two) = limiters(&store);
        for (cost, admitted, charges) in [(4, true, [4, 1]), (9, true, [5, 2]), (9, false, [5, 2])]
        {
            let both = AllOf::new()
                .with(five.record("k").cost(cost))
                .with(two.acquire("k"))
                .with(two.status("k"));
            let both = decided(both).unwrap();
            assert_eq!(!both.is_denied(), admitted);
            let record = both.parts()[0].outcome();
            assert_eq!(
                matches!(record, Some(PartOutcome::Uncharged(_))),
                !admitted,
                "{record:?}"
            );
            assert_eq!(both.parts()[2].status().unwrap().used(), charges[1]);
            assert_eq!([used(&five), used(&two)], charges);
            let policy = policy!("99/1h");
            let status = block_on(five.status("k").policy(&policy));
            assert_eq!(status.unwrap().used(), cost);
        }
        // A record can fail, so until it is made the charges of others may be refunded.
        let broken = failing();
        let both = AllOf::new()
            .with(broken.record("k"))
            .with(five.acquire("j"));
        assert!(decided(both).is_err());
        assert_eq!(block_on(five.status("j")).unwrap().used(), 0);
    }
}

/// Without an exact limit, entries have no receipts.
#[test]
fn charges_that_cannot_be_refunded_are_made_after_the_others() {
    for store in stores() {
        let coarse = Limiter::new("coarse", policy!("2/1h~1m"), store.clone());
        let both = limiters(&store);
        for (exact, cost, admitted, charges) in [
            (&both.1, 2, true, [1, 2]),
            (&both.1, 1, false, [1, 2]),
            (&both.0, 1, true, [2, 1]),
            (&both.0, 1, false, [2, 1]),
        ] {
            let calls = AllOf::new()
                .with(coarse.acquire("k"))
                .with(exact.acquire("k").cost(cost));
            assert_eq!(admits(calls), admitted);
            assert_eq!([used(&coarse), used(exact)], charges);
        }
    }
}

#[test]
fn calls_with_a_given_time_are_refunded_and_settled_at_that_time() {
    let at = |seconds: u64| Timestamp::from_micros_saturating(seconds * 1_000_000);
    for store in stores() {
        let (five, two) = limiters(&store);
        let used = |limiter: &Limiter, seconds| {
            let status = block_on(limiter.status("k").at(at(seconds)));
            status.unwrap().used()
        };
        let calls = |cost| {
            AllOf::new()
                .with(five.acquire("k").cost(5).at(at(100)))
                .with(two.acquire("k").cost(cost).at(at(100)))
        };
        assert!(block_on(two.acquire("k").at(at(100))).unwrap().is_allowed());
        assert!(!admits(calls(2)));
        assert_eq!([used(&five, 100), used(&two, 100)], [0, 1]);
        let charges = decided(calls(1)).unwrap().into_result().unwrap();
        assert!(
            block_on(charges[0].settle(3).into_future())
                .unwrap()
                .applied()
        );
        assert_eq!([used(&five, 100), used(&two, 100)], [3, 2]);
    }
}

#[test]
fn charges_are_settled_refunded_and_moved_into_a_task() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let gold = policy!("50/1h");
        let part = |cost| Part::from(two.acquire("k").cost(cost)).policy(&gold);
        let calls = AllOf::new()
            .refundable()
            .with(five.acquire("k").cost(3))
            .with(part(2))
            .with(part(20))
            .with(five.peek("k"));
        let decision = decided(joint::into_owned(calls)).unwrap();
        let mut all = joint::decision_into_owned(decision);
        let settle = |all: &mut JointDecision<'_>, place: usize, cost| {
            block_on(joint::parts_mut(all)[place].settle(cost)).unwrap()
        };
        let permit = all.parts()[1].permit().unwrap();
        assert_eq!(
            (permit.key(), permit.decision().remaining()),
            (&b"k"[..], 48)
        );
        assert!(settle(&mut all, 1, 1));
        assert_eq!(all.parts()[1].status().unwrap().remaining(), 29);
        // The limiter's policy does not admit 20 units, so their charge stays.
        assert!(!settle(&mut all, 2, 7));
        assert!(settle(&mut all, 0, 0));
        let settled: Vec<bool> = all
            .parts()
            .iter()
            .map(|part| part.permit().is_some())
            .collect();
        assert_eq!(settled, [false, false, true, false]);
        assert_eq!([used(&five), used(&two)], [0, 2]);
        let calls = AllOf::new()
            .with(five.acquire("k"))
            .with(kept(five.acquire("j")));
        let mut both = decided(calls).unwrap();
        block_on(joint::refund(&mut both));
        let rest = both.into_result().unwrap();
        let keys: Vec<&[u8]> = rest.iter().map(Permit::key).collect();
        assert_eq!((keys, used(&five)), (vec![&b"j"[..]], 0));
    }
}

#[test]
fn synchronous_stores_decide_without_a_future() {
    let store = Arc::new(ReferenceStore::new());
    let limiter = |name, policy| Limiter::new(name, policy, Arc::clone(&store));
    let five = limiter("five", policy!("5/1h"));
    let two = limiter("two", policy!("2/1h"));
    let calls = |cost| {
        AllOf::new()
            .with(five.acquire("k"))
            .with(two.acquire("k").cost(cost))
    };
    let charges = calls(1).now().unwrap().into_result().unwrap();
    assert!(charges[0].refund().now().unwrap().applied());
    assert!(calls(2).now().unwrap().is_denied());
    assert_eq!(
        calls(3).now().unwrap_err().kind(),
        ErrorKind::CostExceedsLimit
    );
    let used = |limiter: &Limiter<_>| limiter.status("k").now().unwrap().used();
    assert_eq!([used(&five), used(&two)], [0, 1]);
}

#[test]
fn calls_that_go_together_are_one_call() {
    let joining = joining();
    let store: SharedStore = joining.clone();
    let (five, two) = limiters(&store);
    let attempts = policy!("2/1h").with_counting(Counting::Attempts);
    let attempts = Limiter::new("attempts", attempts, store.clone());
    let at = |micros| Timestamp::from_micros_saturating(micros);
    let calls = || {
        AllOf::new()
            .with(five.acquire("k"))
            .with(attempts.acquire("k"))
            .with(two.acquire("k").cost(2))
    };
    let record = AllOf::new()
        .with(five.record("r").cost(9))
        .with(two.acquire("k"));
    let twice = AllOf::new().with(five.acquire("a")).with(five.acquire("a"));
    let times = AllOf::new()
        .with(five.acquire("b").at(at(1)))
        .with(two.acquire("b").at(at(2)));
    let denies_last = AllOf::new()
        .with(attempts.acquire("k").cost(2))
        .with(five.acquire("k"));
    let kept = AllOf::new()
        .with(kept(five.acquire("k")))
        .with(two.acquire("k"));
    let never = AllOf::new()
        .with(five.acquire("k").cost(6))
        .with(attempts.acquire("k"));
    // The first denying limiter counts attempts, or does not.
    for (calls, admits, round_trips, expected) in [
        (calls(), true, 1, [1, 1, 2]),
        (calls(), false, 1, [1, 1, 2]),
        (record, false, 1, [1, 1, 2]),
        (denies_last, false, 1, [1, 2, 2]),
        (twice, true, 2, [1, 2, 2]),
        (times, true, 2, [1, 2, 2]),
        (kept, false, 1, [2, 2, 2]),
        (never, false, 1, [2, 2, 2]),
    ] {
        joining.calls.store(0, Ordering::Relaxed);
        let text = format!("{calls:?}");
        let admitted = decided(calls).is_ok_and(|decided| !decided.is_denied());
        let trips = joining.calls.load(Ordering::Relaxed);
        assert_eq!((admitted, trips), (admits, round_trips), "{text}");
        assert_eq!(
            [used(&five), used(&attempts), used(&two)],
            expected,
            "{text}"
        );
    }
}

/// One call after the other, together, or the first alone and the rest together.
#[test]
fn a_thousand_calls_take_as_many_round_trips_as_few() {
    for (joins, alone, round_trips) in [(false, 0, 1_000), (true, 0, 1), (true, 1, 2)] {
        let slow = Arc::new(SlowStore {
            joins,
            waits: [0, 0],
            ..SlowStore::default()
        });
        let (five, _) = limiters(&(slow.clone() as SharedStore));
        let part = |n: u64| match n < alone {
            true => five.acquire(999_u64),
            false => five.acquire(n),
        };
        let calls = (0..1_000).fold(AllOf::new(), |calls, n| calls.with(part(n)));
        assert!(admits(calls));
        assert_eq!(slow.calls.load(Ordering::Relaxed), round_trips, "{joins}");
    }
}

#[test]
fn from_the_first_invalid_call_on_the_others_only_look() {
    let (five, two) = limiters(&(joining() as SharedStore));
    let calls = AllOf::new()
        .with(five.acquire("k"))
        .with(two.acquire("j").cost(3))
        .with(two.acquire("k").cost(3))
        .with(five.record("r").cost(0));
    let decision = block_on(joint::decide(calls));
    let outcomes = decision.parts().iter().map(|part| match part.outcome() {
        Some(PartOutcome::Failed(error)) => Some(error.kind()),
        Some(PartOutcome::Uncharged(_)) => None,
        other => panic!("{other:?}"),
    });
    let too_much = Some(ErrorKind::CostExceedsLimit);
    assert_eq!(
        outcomes.collect::<Vec<_>>(),
        [None, too_much, too_much, None]
    );
}

#[test]
fn calls_on_a_store_and_on_a_wrapper_around_it_go_one_by_one() {
    let joining = joining();
    let slow = SlowStore {
        reference: Arc::clone(&joining.reference),
        ..SlowStore::default()
    };
    let there = limiters(&(Arc::new(slow) as SharedStore));
    let here = limiters(&(joining as SharedStore));
    for (first, second) in [(&there.0, &there.1), (&here.0, &there.1)] {
        let calls = || {
            AllOf::new()
                .with(first.acquire("k"))
                .with(second.acquire("k"))
        };
        assert!(admits(calls()));
        assert!(block_on(second.acquire("k")).unwrap().is_allowed());
        assert!(!admits(calls()));
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
        assert!(admits(calls(2)));
        assert!(!admits(calls(1)));
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
            (0..100).filter(|_| admits(both())).count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        let admitted = threads.into_iter().map(|thread| thread.join().unwrap());
        admitted.sum()
    });
    assert_eq!([used(&five), used(&two)], [admitted as u64; 2]);
    assert_eq!(admitted, 2);
}

/// Dropping a decision is as dropping a single acquire: what was charged by then stays, and no limit is exceeded.
#[test]
fn ten_thousand_aborted_decisions_leave_what_was_charged_by_then() {
    // A hundred calls on each of a hundred keys.
    const EACH: u64 = 100;
    // By the polls before the drop: the first call waits for one poll, and so does the second. A joint call waits once.
    for (joins, polls, left) in [
        (false, 1, [0, 0]),
        (false, 2, [10_000, 0]),
        (false, 3, [10_000, 10_000]),
        (true, 1, [0, 0]),
        (true, 2, [10_000, 10_000]),
    ] {
        let slow = SlowStore {
            joins,
            ..SlowStore::default()
        };
        let store: SharedStore = Arc::new(slow);
        let limiters =
            ["first", "second"].map(|name| Limiter::new(name, policy!("100/1h"), store.clone()));
        let [first, second] = &limiters;
        for n in 0..EACH * 100 {
            let both = AllOf::new()
                .with(first.acquire(n / EACH))
                .with(second.acquire(n / EACH));
            let mut both = pin!(both.into_future());
            for _ in 0..polls {
                let _ = both.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        }
        let used = |limiter: &Limiter, key| block_on(limiter.status(key)).unwrap().used();
        let total = |limiter| (0..100_u64).map(|key| used(limiter, key)).sum::<u64>();
        assert_eq!(
            [total(first), total(second)],
            left,
            "{joins}, {polls} polls"
        );
        let next = block_on(first.acquire(0_u64)).unwrap();
        assert_eq!(next.is_allowed(), left[0] == 0, "never above the maximum");
    }
}
