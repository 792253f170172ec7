//! One decision over several limiters.

use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Poll;

use async_trait::async_trait;
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use limiter_core::request::{Answer, Background, Part, Together};
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{BoxFuture, Counting, Error, ErrorKind, Limiter, NowStore, SharedStore, WindowStore, policy};
use limiter_testkit::OracleStore;

use crate::slow_store::SlowStore;

/// The stores of each case: one answers without waiting, one needs a future.
fn stores() -> [SharedStore; 2] {
    [Arc::new(OracleStore::new()), Arc::new(SlowStore::default())]
}

/// A store that applies operations and answers once it may.
#[derive(Debug, Default)]
struct Late {
    oracle: OracleStore,
    may_answer: AtomicBool,
}

impl Late {
    async fn answer<T>(&self, answer: T) -> Result<T, Error> {
        polls(|| self.may_answer.load(Ordering::Relaxed)).await;
        Ok(answer)
    }
}

#[async_trait]
impl WindowStore for Late {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.answer(self.oracle.apply_now(&op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.answer(self.oracle.settle_now(&settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.answer(self.oracle.reset_now(log)).await
    }
}

/// A store that fails.
#[derive(Debug)]
struct Failing;

fn refused<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Unavailable, "connection refused"))
}

#[async_trait]
impl WindowStore for Failing {
    async fn apply(&self, _: Op<'_>) -> Result<Facts, Error> {
        refused()
    }

    async fn settle(&self, _: Settlement<'_>) -> Result<SettlementFacts, Error> {
        refused()
    }

    async fn reset(&self, _: LogKey<'_>) -> Result<bool, Error> {
        refused()
    }
}

fn failing() -> Limiter {
    Limiter::new("failing", policy!("9/1h"), Arc::new(Failing))
}

/// Completes when a poll finds that the condition holds.
async fn polls(mut condition: impl FnMut() -> bool) {
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if condition() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Two limiters, of 5 and of 2 units an hour.
fn limiters(store: &SharedStore) -> (Limiter, Limiter) {
    (Limiter::new("five", policy!("5/1h"), store.clone()), Limiter::new("two", policy!("2/1h"), store.clone()))
}

fn used(limiter: &Limiter) -> u64 {
    block_on(limiter.status("k")).unwrap().used()
}

/// A background whose refunds are collected.
fn background() -> (Background, Arc<Mutex<Vec<BoxFuture<'static, ()>>>>) {
    let refunds: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
    let sink = Arc::clone(&refunds);
    (Background::new(move |refund| sink.lock().unwrap().push(refund)), refunds)
}

#[test]
fn all_are_charged_or_none_and_the_wait_is_the_longest() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let short = Limiter::new("short", policy!("1/1s"), store.clone());
        let calls = || Together::new().and(five.acquire("k").cost(2)).and(two.acquire("k")).and(short.acquire("k"));
        let mut first = calls();
        assert!(block_on(first.decide()).unwrap());
        assert!(matches!(first.parts()[0].answer(), Some(Answer::Admitted(decision)) if decision.used() == 2));
        first.confirm();
        assert_eq!([used(&five), used(&two), used(&short)], [2, 1, 1]);
        assert!(block_on(two.acquire("k")).unwrap().allowed());
        let mut second = calls();
        assert!(!block_on(second.decide()).unwrap());
        assert!(second.retry_after().unwrap().as_secs() >= 3_590, "that of the second limiter");
        let denies: Vec<bool> = second.parts().iter().map(Part::denies).collect();
        assert_eq!(denies, [false, true, true], "the third is asked as well");
        assert_eq!(second.parts()[0].status().unwrap().used(), 2, "the refund is reported");
        drop(second);
        assert_eq!([used(&five), used(&two), used(&short)], [2, 2, 1]);
    }
}

#[test]
fn a_drop_refunds_what_is_not_confirmed() {
    let (exact, coarse) = (policy!("9/1h"), policy!("9/1h~1m"));
    for (confirms, policy) in [(false, &exact), (true, &exact), (true, &coarse)] {
        for (i, store) in stores().into_iter().enumerate() {
            let [one, two] = ["one", "two"].map(|name| Limiter::new(name, policy, store.clone()));
            // One poll makes no, one or both calls; the call under way is refunded when it is answered.
            for polls in 0..6 {
                let (background, refunds) = background();
                let mut both = Together::new().and(one.acquire("k")).and(two.acquire("k"));
                both.refund_in(background);
                if confirms {
                    both.confirm_on_admission();
                }
                let mut admitted = false;
                {
                    let mut deciding = std::pin::pin!(both.decide());
                    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                    for _ in 0..polls {
                        admitted = deciding.as_mut().poll(&mut context).is_ready();
                        if admitted {
                            break;
                        }
                    }
                }
                drop(both);
                let refunds = std::mem::take(&mut *refunds.lock().unwrap());
                assert!(refunds.len() <= i * 2, "a store that answers at once is refunded in place");
                block_on(join_all(refunds));
                assert_eq!([used(&one), used(&two)], [u64::from(confirms && admitted); 2], "after {polls} polls");
                for limiter in [&one, &two] {
                    block_on(limiter.reset("k")).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_dropped_decision_goes_on_where_it_stopped() {
    // A store may answer some calls at once.
    for first in stores() {
        let slow: SharedStore = Arc::new(SlowStore::default());
        let limiter = |name, policy, store: &SharedStore| Limiter::new(name, policy, store.clone());
        let strict = limiter("strict", policy!("1/1s, 9/1d").with_counting(Counting::Attempts), &first);
        let two = limiter("two", policy!("2/1h"), &slow);
        for expected in [[1, 1], [2, 1], [3, 1]] {
            let mut both = Together::new().and(strict.acquire("k")).and(two.acquire("k"));
            assert!(both.decide().now_or_never().is_none());
            if block_on(both.decide()).unwrap() {
                both.confirm();
            }
            let attempts = block_on(strict.status("k")).unwrap().limits();
            assert_eq!([attempts.get(1).unwrap().used(), used(&two)], expected);
        }
    }
}

#[test]
fn an_error_charges_nothing_unless_it_is_tolerated() {
    for store in stores() {
        let ((five, two), broken) = (limiters(&store), failing());
        let calls = || Together::new().and(five.acquire("k")).and(broken.acquire("k")).and(two.acquire("k"));
        let error = block_on(calls().decide()).unwrap_err();
        assert_eq!((error.kind(), error.limiter_name()), (ErrorKind::Unavailable, Some("failing")));
        assert_eq!([used(&five), used(&two)], [0, 0]);
        let mut open = calls();
        assert!(block_on(open.decide_with(Error::is_retryable, pending())));
        open.confirm();
        assert_eq!([used(&five), used(&two)], [1, 1]);
        let mut too_much = Together::new().and(five.acquire("k")).and(two.acquire("k").cost(3));
        assert_eq!(block_on(too_much.decide()).unwrap_err().kind(), ErrorKind::CostExceedsLimit);
        assert_eq!((too_much.retry_after(), used(&five)), (None, 1));
    }
}

#[test]
fn a_store_that_is_late_fails_and_all_are_refunded() {
    for store in stores() {
        let ((five, two), late) = (limiters(&store), Arc::new(Late::default()));
        let limiter: Limiter = Limiter::new("late", policy!("9/1h"), late.clone());
        let (background, refunds) = background();
        let mut three = Together::new().and(five.acquire("k")).and(limiter.acquire("k")).and(two.acquire("k"));
        three.refund_in(background);
        let mut left = 0..10;
        let timeout = async {
            polls(|| left.next().is_none()).await;
            Error::new(ErrorKind::Timeout, "too late")
        };
        assert!(!block_on(three.decide_with(|_| false, timeout)));
        block_on(three.refund());
        assert_eq!(three.take_error().unwrap().kind(), ErrorKind::Timeout);
        drop(three);
        assert_eq!([used(&five), used(&two)], [0, 0]);
        // What the late store has charged is refunded when it answers.
        late.may_answer.store(true, Ordering::Relaxed);
        assert_eq!(used(&limiter), 1);
        block_on(join_all(std::mem::take(&mut *refunds.lock().unwrap())));
        assert_eq!(used(&limiter), 0);
    }
}

#[test]
fn kept_and_advisory_calls_are_exceptions() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let trial = Limiter::new("trial", policy!("1/1h"), store.clone());
        let calls = || {
            let kept = Part::from(five.acquire("k")).keep_charge();
            let trial = Part::from(trial.acquire("k")).advisory();
            Together::new().and(two.acquire("k").cost(2)).and(kept).and(trial).and(trial_failure())
        };
        for (admitted, charges) in [(true, [1, 2, 1]), (false, [2, 2, 1])] {
            let mut calls = calls();
            assert_eq!(block_on(calls.decide()).unwrap(), admitted);
            if admitted {
                calls.confirm();
            }
            assert_eq!([used(&five), used(&two), used(&trial)], charges);
        }
        // Asked again, a kept charge is charged once.
        let mut again = calls();
        for _ in 0..3 {
            assert!(!block_on(again.decide()).unwrap());
            again.forget();
        }
        drop(again);
        assert_eq!([used(&five), used(&two)], [3, 2]);
    }
}

fn trial_failure() -> Part<'static, SharedStore> {
    static BROKEN: LazyLock<Limiter> = LazyLock::new(failing);
    Part::from(BROKEN.acquire("k")).advisory()
}

#[test]
fn a_denial_refunds_charges_under_a_resolution() {
    for store in stores() {
        let coarse = Limiter::new("coarse", policy!("9/1h~1m"), store.clone());
        let full = Limiter::new("full", policy!("1/1h~1m"), store);
        assert!(block_on(full.acquire("k")).unwrap().allowed());
        let _ = block_on(coarse.acquire("k"));
        let mut call = Together::new().and(coarse.acquire("k").cost(3)).and(full.acquire("k"));
        assert!(!block_on(call.decide()).unwrap());
        assert_eq!(used(&coarse), 1);
    }
}

#[test]
fn charges_that_nothing_refunds_have_no_receipts_under_a_resolution() {
    type Change = fn(Part<'_, SharedStore>) -> Part<'_, SharedStore>;
    const PLAIN: Change = |part| part;
    for (i, store) in stores().into_iter().enumerate() {
        let limiter = |name| Limiter::new(name, policy!("9/1h~1m"), store.clone());
        let (one, two) = (limiter("one"), limiter("two"));
        let waits = i == 1;
        let cases: [(Change, Change, [bool; 2]); 3] = [
            // A drop while the second call is answered refunds both.
            (PLAIN, PLAIN, [true, waits]),
            (|part| part.keep_charge(), PLAIN, [false, waits]),
            (PLAIN, |part| part.advisory(), [false, false]),
        ];
        for (first, second, expected) in cases {
            for confirms in [false, true] {
                let (one, two) = (first(one.acquire("k").into()), second(two.acquire("k").into()));
                let mut both = Together::new().and(one).and(two);
                if confirms {
                    both.confirm_on_admission();
                }
                assert!(block_on(both.decide()).unwrap());
                let receipts: Vec<bool> = both.parts().iter().map(|part| part.permit().is_some()).collect();
                assert_eq!(receipts, expected.map(|expected| expected || !confirms));
            }
        }
        // The charge of a single call stays even if the value is dropped before the answer.
        let (single, (background, refunds)) = (limiter("single"), background());
        let mut call = Together::new().and(single.acquire("k"));
        let _ = call.refund_in(background).confirm_on_admission().decide().now_or_never();
        drop(call);
        block_on(join_all(std::mem::take(&mut *refunds.lock().unwrap())));
        assert_eq!(used(&single), 1);
    }
}

#[test]
fn denied_attempts_count_where_the_policy_says_so() {
    for store in stores() {
        let (five, _) = limiters(&store);
        let attempts = policy!("1/1h, 9/1d").with_counting(Counting::Attempts);
        let strict = Limiter::new("strict", attempts, store.clone());
        for expected in [[1, 1], [1, 2], [1, 3]] {
            let mut both = Together::new().and(five.acquire("k")).and(strict.acquire("k"));
            if block_on(both.decide()).unwrap() {
                both.confirm();
            }
            let attempts = block_on(strict.status("k")).unwrap().limits();
            assert_eq!([used(&five), attempts.get(1).unwrap().used()], expected);
        }
    }
}

#[test]
fn peeks_records_and_statuses_take_part() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let calls = || Together::new().and(two.status("k")).and(five.record("k").cost(2)).and(two.peek("k").cost(2));
        let mut first = calls();
        assert!(block_on(first.decide()).unwrap());
        first.confirm();
        assert_eq!([used(&five), used(&two)], [2, 0]);
        assert!(block_on(two.acquire("k")).unwrap().allowed());
        let mut second = calls();
        assert!(!block_on(second.decide()).unwrap(), "the peek denies");
        drop(second);
        assert_eq!([used(&five), used(&two)], [2, 1], "the record is refunded");
        let mut above = Together::new().and(five.record("k").cost(4)).and(two.peek("k").cost(2));
        assert!(!block_on(above.decide()).unwrap() && above.parts()[0].permit().is_none());
        drop(above);
        assert_eq!([used(&five), used(&two)], [5, 1], "a record above the maximum has no receipt");
    }
}

#[test]
fn charges_are_settled_reset_and_moved_into_a_task() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let gold = Arc::new(policy!("50/1h"));
        let part = |cost| Part::from(two.acquire("k").cost(cost)).under(Arc::clone(&gold));
        let mut both = Together::new().and(five.acquire("k").cost(3)).and(part(2)).and(part(20)).into_owned();
        drop(gold);
        assert!(block_on(both.decide()).unwrap());
        let permit = both.parts()[1].permit().unwrap();
        assert_eq!((permit.key(), permit.decision().remaining()), (&b"k"[..], 48));
        assert!(block_on(both.parts_mut()[1].settle(1)).unwrap());
        assert_eq!(both.parts()[1].status().unwrap().remaining(), 29);
        // The limiter's policy does not admit 20 units, so their charge stays.
        assert!(both.parts()[2].permit().is_none() && !block_on(both.parts_mut()[2].settle(7)).unwrap());
        assert!(block_on(both.parts_mut()[0].reset()).unwrap());
        assert_eq!(both.parts()[0].status().unwrap().used(), 0);
        drop(both);
        assert_eq!([used(&five), used(&two)], [0, 2], "what was settled is kept");
    }
}

#[test]
fn concurrent_callers_exceed_no_limit_and_leave_no_charge() {
    let store: SharedStore = Arc::new(OracleStore::new());
    let (five, two) = limiters(&store);
    let admitted: usize = std::thread::scope(|scope| {
        let ask = || {
            let ask = |_: usize| {
                let mut both = Together::new().and(five.acquire("k")).and(two.acquire("k"));
                let admitted = block_on(both.decide()).unwrap();
                if admitted {
                    both.confirm();
                }
                admitted
            };
            (0..100).filter(|i| ask(*i)).count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!([used(&five), used(&two)], [admitted as u64; 2]);
    assert_eq!(admitted, 2, "the later calls find the units that a refund gave back");
}
