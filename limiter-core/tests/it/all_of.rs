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

fn used<const N: usize>(limiters: [&Limiter; N]) -> [u64; N] {
    limiters.map(|limiter| block_on(limiter.status("k")).unwrap().used())
}

fn all<'a, const N: usize>(parts: [Part<'a, SharedStore>; N]) -> AllOf<'a> {
    parts.into_iter().fold(AllOf::new(), AllOf::with)
}

/// An acquire of the key `k`.
fn take(limiter: &Limiter, cost: u64) -> Part<'_, SharedStore> {
    limiter.acquire("k").cost(cost).into()
}

fn decided<'a>(calls: AllOf<'a>) -> Result<JointDecision<'a>, Error> {
    block_on(calls.into_future())
}

/// Whether all calls admit. A failure is none.
fn admits(calls: AllOf<'_>) -> bool {
    !decided(calls).unwrap().is_denied()
}

#[test]
fn all_are_charged_or_none_and_the_wait_is_the_longest() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let short = Limiter::new("short", policy!("1/1s"), store.clone());
        let calls = || all([take(&five, 2), take(&two, 1), take(&short, 1)]);
        assert!(admits(calls()));
        assert_eq!(used([&five, &two, &short]), [2, 1, 1]);
        assert!(block_on(two.acquire("k")).unwrap().is_allowed());
        let second = decided(calls()).unwrap();
        let wait = second.retry_after().unwrap();
        assert!(wait.as_secs() >= 3_590, "that of the second limiter");
        let denies: Vec<bool> = second.parts().iter().map(Part::denies).collect();
        assert_eq!(denies, [false, true, true], "the third is asked as well");
        let first = second.parts()[0].status().unwrap();
        assert_eq!(first.used(), 2, "the refund is reported");
        let denied = second.into_result().unwrap_err();
        assert_eq!(denied.retry_after(), wait);
        let text = denied.to_string();
        let start = "two: the limit 2/1h is exceeded; retry after 3";
        assert!(text.starts_with(start), "{text}");
        assert_eq!(used([&five, &two, &short]), [2, 2, 1]);
    }
}

#[test]
fn an_error_charges_nothing_unless_the_part_fails_open() {
    for store in stores() {
        let ((five, two), broken) = (limiters(&store), failing());
        let calls = |broken| all([take(&five, 1), broken, take(&two, 1)]);
        let error = decided(calls(take(&broken, 1))).unwrap_err();
        let found = (error.kind(), error.limiter_name());
        assert_eq!(found, (ErrorKind::Unavailable, Some("failing")));
        assert_eq!(used([&five, &two]), [0, 0]);
        assert!(admits(calls(take(&broken, 1).fail_open())));
        assert_eq!(used([&five, &two]), [1, 1]);
        // Middleware that leaves the error where it is does not admit.
        let failed = block_on(joint::decide(calls(take(&broken, 1))));
        assert_eq!((failed.is_denied(), failed.retry_after()), (true, None));
        assert!(calls(take(&broken, 1)).is_denied(), "no call was made");
        assert_eq!(used([&five, &two]), [1, 1]);
        // What can never fit is no failure of the store.
        let calls = all([take(&five, 1), take(&two, 3).fail_open()]);
        let error = decided(calls).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
        let coarse = Limiter::new("coarse", policy!("9/1h~1m"), store.clone());
        let with_id = Part::from(coarse.acquire("k").idempotency_key(7));
        let error = decided(all([take(&five, 1), with_id.fail_open()])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NeedsExactLimit);
        assert_eq!(used([&five, &two]), [1, 1]);
    }
}

#[test]
#[cfg(feature = "tokio")]
fn a_store_that_is_late_fails_and_the_others_are_refunded() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    for store in stores() {
        let (five, two) = limiters(&store);
        let hanging = SlowStore {
            waits: [u32::MAX, 0],
            ..SlowStore::default()
        };
        let late = Limiter::new("late", policy!("9/1h"), Arc::new(hanging) as SharedStore);
        let calls = || {
            let calls = all([take(&five, 1), take(&late, 1), take(&two, 1)]);
            calls.timeout(std::time::Duration::from_millis(50))
        };
        let error = runtime.block_on(calls().into_future()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(used([&five, &two]), [0; 2]);
        // Without a runtime there is no timeout, so a store must not wait.
        let error = decided(calls()).unwrap_err();
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
            let [trial, broken] = [&trial, &broken].map(|limiter| take(limiter, 1).advisory());
            all([trial, take(&two, 2), take(&five, 1).keep_charge(), broken])
        };
        assert!(block_on(two.acquire("k")).unwrap().is_allowed());
        assert!(!admits(calls()));
        assert_eq!(used([&five, &two, &trial]), [1, 1, 0]);
        assert!(block_on(two.reset("k").into_future()).unwrap() && admits(calls()));
        assert_eq!(used([&five, &two, &trial]), [2, 2, 1]);
    }
}

#[test]
fn records_come_last_and_a_record_that_is_only_looked_up_neither_denies_nor_fails() {
    for store in stores() {
        let (five, two) = limiters(&store);
        for (cost, admitted, charges) in [(4, true, [4, 1]), (9, true, [5, 2]), (9, false, [5, 2])]
        {
            let record = five.record("k").cost(cost).into();
            let calls = all([record, take(&two, 1), two.status("k").into()]);
            let decision = decided(calls).unwrap();
            assert_eq!(!decision.is_denied(), admitted);
            let record = decision.parts()[0].outcome();
            let is_charged = !matches!(record, Some(PartOutcome::Uncharged(_)));
            assert_eq!(is_charged, admitted, "{record:?}");
            assert_eq!(decision.parts()[2].status().unwrap().used(), charges[1]);
            assert_eq!(used([&five, &two]), charges);
            let policy = policy!("99/1h");
            let status = block_on(five.status("k").policy(&policy));
            assert_eq!(status.unwrap().used(), cost);
        }
        // A record can fail, so until it is made the charges of others may be refunded.
        let broken = failing();
        let calls = all([broken.record("k").into(), five.acquire("j").into()]);
        assert!(decided(calls).is_err());
        assert_eq!(block_on(five.status("j")).unwrap().used(), 0);
    }
}

/// Without an exact limit, entries have no receipts.
#[test]
fn charges_that_cannot_be_refunded_are_made_after_the_others() {
    for store in stores() {
        let coarse = Limiter::new("coarse", policy!("2/1h~1m"), store.clone());
        let (five, two) = limiters(&store);
        for (exact, cost, admitted, charges) in [
            (&two, 2, true, [1, 2]),
            (&two, 1, false, [1, 2]),
            (&five, 1, true, [2, 1]),
            (&five, 1, false, [2, 1]),
        ] {
            assert_eq!(admits(all([take(&coarse, 1), take(exact, cost)])), admitted);
            assert_eq!(used([&coarse, exact]), charges);
        }
    }
}

#[test]
fn calls_with_a_given_time_are_refunded_and_settled_at_that_time() {
    let at = Timestamp::from_micros_saturating(100_000_000);
    for store in stores() {
        let (five, two) = limiters(&store);
        let used =
            || [&five, &two].map(|limiter| block_on(limiter.status("k").at(at)).unwrap().used());
        let calls = |cost| {
            let first = five.acquire("k").cost(5).at(at).into();
            all([first, two.acquire("k").cost(cost).at(at).into()])
        };
        assert!(block_on(two.acquire("k").at(at)).unwrap().is_allowed());
        assert!(!admits(calls(2)));
        assert_eq!(used(), [0, 1]);
        let charges = decided(calls(1)).unwrap().into_result().unwrap();
        let settled = block_on(charges[0].settle(3).into_future());
        assert!(settled.unwrap().applied());
        assert_eq!(used(), [3, 2]);
    }
}

#[test]
fn charges_are_settled_refunded_and_moved_into_a_task() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let gold = policy!("50/1h");
        let gold = |cost| take(&two, cost).policy(&gold);
        let calls = all([take(&five, 3), gold(2), gold(20), five.peek("k").into()]);
        let mut all_of = block_on(joint::decide(joint::into_owned(calls.refundable())));
        let permit = all_of.parts()[1].permit().unwrap();
        assert_eq!(permit.key(), b"k");
        assert_eq!(permit.decision().remaining(), 48);
        // The limiter's policy does not admit 20 units, so their charge stays.
        for (place, cost, settles) in [(1, 1, true), (2, 7, false), (0, 0, true)] {
            let part = &mut joint::parts_mut(&mut all_of)[place];
            assert_eq!(block_on(part.settle(cost)).unwrap(), settles);
        }
        assert_eq!(all_of.parts()[1].status().unwrap().remaining(), 29);
        let has_permit = |part: &Part<'_, _>| part.permit().is_some();
        let permits: Vec<bool> = all_of.parts().iter().map(has_permit).collect();
        assert_eq!(permits, [false, false, true, false]);
        assert_eq!(used([&five, &two]), [0, 2]);
        let kept = Part::from(five.acquire("j")).keep_charge();
        let mut both = block_on(joint::decide(all([take(&five, 1), kept])));
        block_on(joint::refund(&mut both));
        let rest: Vec<_> = both.parts().iter().filter_map(Part::permit).collect();
        let keys: Vec<&[u8]> = rest.iter().map(Permit::key).collect();
        assert_eq!((keys, used([&five])), (vec![&b"j"[..]], [0]));
    }
}

#[test]
fn synchronous_stores_decide_without_a_future() {
    let store = Arc::new(ReferenceStore::new());
    let limiter = |name, policy| Limiter::new(name, policy, Arc::clone(&store));
    let five = limiter("five", policy!("5/1h"));
    let two = limiter("two", policy!("2/1h"));
    let calls = |cost| {
        let first = AllOf::new().with(five.acquire("k"));
        first.with(two.acquire("k").cost(cost)).now()
    };
    let charges = calls(1).unwrap().into_result().unwrap();
    assert!(charges[0].refund().now().unwrap().applied());
    assert!(calls(2).unwrap().is_denied());
    let error = calls(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    let used = [five, two].map(|limiter| limiter.status("k").now().unwrap().used());
    assert_eq!(used, [0, 1]);
}

#[test]
fn calls_that_go_together_are_one_call() {
    let joining = joining();
    let store: SharedStore = joining.clone();
    let (five, two) = limiters(&store);
    let attempts = policy!("2/1h").with_counting(Counting::Attempts);
    let attempts = Limiter::new("attempts", attempts, store.clone());
    let at = Timestamp::from_micros_saturating;
    let calls = || all([take(&five, 1), take(&attempts, 1), take(&two, 2)]);
    let twice = [(); 2].map(|()| five.acquire("a").into());
    let record = all([five.record("r").cost(9).into(), take(&two, 1)]);
    let denies_last = all([take(&attempts, 2), take(&five, 1)]);
    let first = five.acquire("b").at(at(1)).into();
    let times = all([first, two.acquire("b").at(at(2)).into()]);
    let kept = all([take(&five, 1).keep_charge(), take(&two, 1)]);
    let never = all([take(&five, 6), take(&attempts, 1)]);
    // The first denying limiter counts attempts, or does not.
    for (calls, admits, round_trips, expected) in [
        (calls(), true, 1, [1, 1, 2]),
        (calls(), false, 1, [1, 1, 2]),
        (record, false, 1, [1, 1, 2]),
        (denies_last, false, 1, [1, 2, 2]),
        (all(twice), true, 2, [1, 2, 2]),
        (times, true, 2, [1, 2, 2]),
        (kept, false, 1, [2, 2, 2]),
        (never, false, 1, [2, 2, 2]),
    ] {
        joining.calls.store(0, Ordering::Relaxed);
        let text = format!("{calls:?}");
        let admitted = decided(calls).is_ok_and(|decided| !decided.is_denied());
        let trips = joining.calls.load(Ordering::Relaxed);
        assert_eq!((admitted, trips), (admits, round_trips), "{text}");
        assert_eq!(used([&five, &attempts, &two]), expected, "{text}");
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
        let key = |n: u64| if n < alone { 999 } else { n };
        let calls = (0..1_000).fold(AllOf::new(), |calls, n| calls.with(five.acquire(key(n))));
        assert!(admits(calls));
        assert_eq!(slow.calls.load(Ordering::Relaxed), round_trips, "{joins}");
    }
}

#[test]
fn if_a_call_is_invalid_the_others_only_look() {
    let (five, two) = limiters(&(joining() as SharedStore));
    let [other, nothing] = [
        two.acquire("j").cost(3).into(),
        five.record("r").cost(0).into(),
    ];
    let calls = all([take(&five, 1), other, take(&two, 3), nothing]);
    let decision = block_on(joint::decide(calls));
    let outcomes = decision.parts().iter().map(|part| match part.outcome() {
        Some(PartOutcome::Failed(error)) => Some(error.kind()),
        Some(PartOutcome::Uncharged(_)) => None,
        other => panic!("{other:?}"),
    });
    let too_much = Some(ErrorKind::CostExceedsLimit);
    let outcomes: Vec<_> = outcomes.collect();
    let nothing = Some(ErrorKind::InvalidCost);
    assert_eq!(outcomes, [None, too_much, too_much, nothing]);
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
        let calls = || all([take(first, 1), take(second, 1)]);
        assert!(admits(calls()));
        assert!(block_on(second.acquire("k")).unwrap().is_allowed());
        assert!(!admits(calls()));
        assert_eq!(used([first, second]), [1, 2]);
        let reset = |limiter: &Limiter| block_on(limiter.reset("k").into_future()).unwrap();
        assert!(reset(first) && reset(second));
    }
}

#[test]
fn a_repetition_is_not_refunded() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let repeated = || five.acquire("k").idempotency_key(7_u128).into();
        assert!(admits(all([repeated(), take(&two, 2)])));
        assert!(!admits(all([repeated(), take(&two, 1)])));
        assert_eq!(used([&five, &two]), [1, 2]);
    }
}

#[test]
fn concurrent_callers_exceed_no_limit_and_leave_no_charge() {
    let store: SharedStore = Arc::new(ReferenceStore::new());
    let (five, two) = limiters(&store);
    let ask = || {
        let both = || all([take(&five, 1), take(&two, 1)]);
        (0..100).filter(|_| admits(both())).count()
    };
    let admitted: usize = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(ask));
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!((admitted, used([&five, &two])), (2, [2, 2]));
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
        for n in 0..EACH * 100 {
            let [first, second] = limiters.each_ref().map(|limiter| limiter.acquire(n / EACH));
            let mut both = pin!(AllOf::new().with(first).with(second).into_future());
            for _ in 0..polls {
                let _ = both.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        }
        let used = |limiter: &Limiter, key| block_on(limiter.status(key)).unwrap().used();
        let total = |limiter| (0..100_u64).map(|key| used(limiter, key)).sum::<u64>();
        assert_eq!(
            limiters.each_ref().map(total),
            left,
            "{joins}, {polls} polls"
        );
        let next = block_on(limiters[0].acquire(0_u64)).unwrap();
        assert_eq!(next.is_allowed(), left[0] == 0, "never above the maximum");
    }
}
