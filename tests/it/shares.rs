//! The recipes for priorities and for shares, each over 10,000 sequences, against a count of what each window admitted.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use exact_limiter::time::{Clock, WithClock};
use exact_limiter::{Limiter, MemoryStore, Policy, policy};
use limiter_testkit::{MockClock, worst_window};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};

const WINDOW: u64 = 1_000_000;

/// The admissions: their time in microseconds, their cost and who made them.
#[derive(Default)]
struct Admitted(Vec<(u64, u64, usize)>);

impl Admitted {
    /// Returns the cost that counts at a time, of one caller or of all.
    fn used(&self, now: u64, by: Option<usize>) -> u64 {
        let counts = |(at, _, caller): &&(u64, u64, usize)| {
            now - at < WINDOW && by.is_none_or(|by| by == *caller)
        };
        self.0.iter().filter(counts).map(|(_, cost, _)| cost).sum()
    }

    /// Returns the cost of the window that admitted most.
    fn worst(&self) -> u64 {
        let admissions = self.0.iter();
        let admissions = admissions.map(|(at, cost, _)| (Duration::from_micros(*at), *cost));
        worst_window(admissions, Duration::from_micros(WINDOW))
    }
}

/// A step: how far the clock is from the end of the last wait or, without one, how far it moves; a caller, a cost, and a coin.
type Step = (Option<i64>, u64, usize, u64, bool);

type Store = WithClock<Arc<MemoryStore>, MockClock>;

/// Runs 10,000 sequences of forty steps, each with its own key.
fn check(run: impl Fn(&Store, &MockClock, u64, Vec<Step>) -> TestCaseResult) {
    let step = (
        prop::option::of(-1..=1_i64),
        0..200_000_u64,
        0..3_usize,
        1..=3_u64,
        prop::bool::weighted(0.125),
    );
    let config = ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let clock = MockClock::new();
    let store = WithClock::new(Arc::default(), clock.clone());
    let key = Cell::new(0);
    let ran = TestRunner::new(config).run(&vec(step, 40), |steps| {
        key.set(key.get() + 1);
        run(&store, &clock, key.get(), steps)
    });
    ran.unwrap();
}

/// Moves the clock, and returns its time.
fn advance(clock: &MockClock, (near, any): (Option<i64>, u64), wait: Option<Duration>) -> u64 {
    let near = near.zip(wait);
    let near = near.map(|(near, wait)| (wait.as_micros() as u64).saturating_add_signed(near));
    clock.advance(Duration::from_micros(near.unwrap_or(any)));
    clock.now().as_micros()
}

#[test]
fn only_a_full_window_denies_an_important_call() {
    static LOW: Policy = policy!("8/1s");
    let denials = [const { Cell::new(0_u32) }; 2];
    check(|store, clock, key, steps| {
        let api = Limiter::new("api", policy!("10/1s"), store.clone());
        let (mut admitted, mut wait) = (Admitted::default(), None);
        for (near, any, caller, cost, is_refunded) in steps {
            let now = advance(clock, (near, any), wait);
            let is_low = caller == 0;
            let call = api.acquire(key).cost(cost);
            let call = if is_low { call.policy(&LOW) } else { call };
            let decision = call.now().unwrap();
            wait = decision.retry_after();
            let max = if is_low { 8 } else { 10 };
            prop_assert_eq!(wait.is_none(), admitted.used(now, None) + cost <= max);
            let denials = &denials[usize::from(is_low)];
            denials.set(denials.get() + u32::from(wait.is_some()));
            let receipt = decision.receipt().filter(|_| wait.is_none());
            if let Some(receipt) = receipt.filter(|_| is_refunded) {
                prop_assert!(api.refund(key, receipt).now().unwrap().applied());
            } else if wait.is_none() {
                admitted.0.push((now, cost, 0));
            }
        }
        prop_assert!(admitted.worst() <= 10);
        Ok(())
    });
    assert!(denials.iter().all(|denials| denials.get() > 10_000));
}

#[test]
fn a_share_is_never_denied_and_all_together_never_exceed_the_limit() {
    // 2 + 3 + 1 are guaranteed, 4 are for everybody.
    static SHARES: [Policy; 3] = [policy!("2/1s"), policy!("3/1s"), policy!("1/1s")];
    const POOL: u64 = 4;
    let (fullest, denials) = (Cell::new(0), Cell::new(0));
    check(|store, clock, key, steps| {
        let shares = Limiter::new("share", policy!("3/1s"), store.clone());
        let pool = Limiter::new("pool", policy!("4/1s"), store.clone());
        let mut own = Admitted::default();
        let mut shared = Admitted::default();
        let mut all = Admitted::default();
        let mut wait = None;
        for (near, any, tenant, ..) in steps {
            let now = advance(clock, (near, any), wait);
            let share = SHARES[tenant].smallest_max();
            let first = shares.acquire((key, tenant as u64)).policy(&SHARES[tenant]);
            let first = first.now().unwrap().retry_after();
            let by = Some(tenant);
            prop_assert_eq!(first.is_none(), own.used(now, by) < share);
            wait = None;
            if let Some(first) = first {
                let second = pool.acquire(key).now().unwrap().retry_after();
                prop_assert_eq!(second.is_none(), shared.used(now, None) < POOL);
                wait = second.map(|second| first.min(second));
                if second.is_none() {
                    shared.0.push((now, 1, tenant));
                }
            } else {
                own.0.push((now, 1, tenant));
            }
            if wait.is_none() {
                all.0.push((now, 1, tenant));
            } else {
                denials.set(denials.get() + 1);
                prop_assert!(all.used(now, by) >= share, "below its share");
            }
        }
        prop_assert!(all.worst() <= 10);
        fullest.set(fullest.get().max(all.worst()));
        Ok(())
    });
    assert!(fullest.get() == 10 && denials.get() > 10_000);
}
