//! A decision over several limiters that is dropped at any await leaves only the charges that it should.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use limiter_core::request::{AllOf, Background, Part, PartOutcome};
use limiter_core::store::Mode;
use limiter_core::{BoxFuture, Counting, Error, Limiter, Policy, SharedStore, policy};
use proptest::prelude::*;

use crate::slow_store::SlowStore;

const MAX: u64 = 3;
static EXACT: Policy = policy!("3/1h");
static COARSE: Policy = policy!("3/1h~1m");
static ATTEMPTS: Policy = policy!("3/1h").with_counting(Counting::Attempts);

/// A call, and the store behind it.
#[derive(Clone, Copy, Debug)]
struct Case {
    mode: Mode,
    cost: u64,
    /// What counts before the call.
    before: u64,
    policy: &'static Policy,
    is_kept: bool,
    is_advisory: bool,
    tries: bool,
    waits: [u32; 2],
    fails: bool,
}

impl Case {
    fn is_too_large(&self) -> bool {
        self.before + self.cost > MAX
    }

    /// Whether it admits; an error if it cannot tell.
    fn admits(&self) -> Result<bool, ()> {
        let is_record = self.mode == Mode::Record;
        match self {
            _ if self.is_advisory => Ok(true),
            _ if self.fails || (!is_record && self.cost > MAX) => Err(()),
            _ => Ok(is_record || !self.is_too_large()),
        }
    }
}

fn call() -> impl Strategy<Value = Case> {
    let mode =
        prop_oneof![3 => Just(Mode::Acquire), 2 => Just(Mode::Record), 1 => Just(Mode::Peek)];
    let policy = prop_oneof![Just(&EXACT), Just(&COARSE), Just(&ATTEMPTS)];
    let rarely = || proptest::bool::weighted(0.1);
    let (store, options) = (
        (any::<bool>(), 0..3_u32, 0..2_u32, rarely()),
        (policy, rarely(), rarely()),
    );
    (mode, 1..=MAX + 1, 0..MAX, store, options).prop_map(|(mode, cost, before, store, options)| {
        let ((tries, applies, settles, fails), (policy, is_kept, is_advisory)) = (store, options);
        let (tries, waits) = (tries && !fails, [applies, settles]);
        Case {
            mode,
            cost,
            before,
            policy,
            is_kept,
            is_advisory,
            tries,
            waits,
            fails,
        }
    })
}

/// Drops the decision after `polls` polls, and its future after `resumes`. Returns whether it had ended.
fn drop_after(
    polls: usize,
    resumes: usize,
    calls: &[Case],
    refundable: bool,
    confirms: bool,
    joins: bool,
) -> bool {
    // The limiter's own policy keeps the entries that a record above the maximum of the call's policy would displace.
    let store = |&Case {
                     tries,
                     waits,
                     fails,
                     ..
                 }: &Case| {
        Arc::new(SlowStore {
            tries,
            waits,
            fails,
            joins,
            ..SlowStore::default()
        })
    };
    let shared = store(&calls[0]);
    let limiter = |(number, call): (usize, &Case)| {
        let (store, name) = (
            if joins {
                Arc::clone(&shared)
            } else {
                store(call)
            },
            format!("limit {number}"),
        );
        let meter = Limiter::new(&*name, policy!("1000/1h"), Arc::clone(&store.reference));
        (
            Limiter::<SharedStore>::new(&*name, policy!("1000/1h"), store),
            meter,
        )
    };
    let limiters: Vec<(Limiter, _)> = calls.iter().enumerate().map(limiter).collect();
    let refunds: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
    let sink = Arc::clone(&refunds);
    let mut all = if refundable {
        AllOf::new().refundable()
    } else {
        AllOf::new()
    };
    all.refund_in(Background::new(move |refund| {
        sink.lock().unwrap().push(refund);
    }));
    for (call, (limiter, meter)) in calls.iter().zip(&limiters) {
        if call.before > 0 {
            assert!(meter.record("k").cost(call.before).now().is_ok());
        }
        let part: Part<'_, _> = match call.mode {
            Mode::Acquire => limiter
                .acquire("k")
                .cost(call.cost)
                .policy(call.policy)
                .into(),
            Mode::Record => limiter
                .record("k")
                .cost(call.cost)
                .policy(call.policy)
                .into(),
            Mode::Peek => limiter.peek("k").cost(call.cost).policy(call.policy).into(),
        };
        let mut part = if call.is_advisory {
            part.advisory()
        } else {
            part
        };
        part.set_keep_charge(call.is_kept);
        all.push(part);
    }

    let first = polls.min(resumes);
    let result = poll(&mut all, first).or_else(|| poll(&mut all, polls - first));
    if let Some(result) = &result {
        let expected = calls
            .iter()
            .map(Case::admits)
            .try_fold(true, |all, admits| Ok::<_, ()>(all & admits?));
        assert_eq!(result.as_ref().ok(), expected.as_ref().ok(), "{result:?}");
    }
    let is_made: Vec<bool> = all
        .parts()
        .iter()
        .map(|part| part.outcome().is_some() && !part.denies())
        .collect();
    let is_decided = calls
        .iter()
        .zip(&is_made)
        .all(|(call, is_made)| call.is_advisory || *is_made);
    let confirms = confirms && matches!(result, Some(Ok(true)));
    let is_kept = confirms || (is_decided && !refundable);
    // Whether it stays whatever the others decide, if it is charged.
    let charged = |(part, call): (&Part<'_, _>, &Case)| match part.outcome()? {
        PartOutcome::Charged(_) => Some(is_kept || call.is_kept),
        PartOutcome::Denied(decision) => Some(decision.appended()),
        _ => None,
    };
    let stays: Vec<bool> = all
        .parts()
        .iter()
        .zip(calls)
        .map(|part| charged(part).unwrap_or(false))
        .collect();
    let is_first = all.parts().iter().all(|part| part.outcome().is_none());
    // Nothing undoes these, unless they were not made.
    let all_fit = calls
        .iter()
        .all(|call| call.mode == Mode::Record || call.admits() == Ok(true));
    let too_large = |call: &Case| call.mode == Mode::Record && call.is_too_large() && all_fit;
    let attempt = |call: &Case| {
        call.policy.counting() == Counting::Attempts
            && call.mode == Mode::Acquire
            && call.is_too_large()
    };
    let single = |call: &Case| {
        (is_first || (joins && call.is_advisory))
            && call.policy.has_resolution()
            && !refundable
            && !call.tries
    };
    if confirms {
        all.confirm();
    }
    drop(all);

    let refunds = std::mem::take(&mut *refunds.lock().unwrap());
    let in_place = |call: &Case| (call.tries || call.waits[0] == 0) && call.waits[1] == 0;
    assert!(
        refunds.is_empty() || !calls.iter().all(in_place),
        "they need no background"
    );
    block_on(join_all(refunds));
    for (i, (call, (_, meter))) in calls.iter().zip(&limiters).enumerate() {
        let cost = meter.status("k").now().unwrap().used() - call.before;
        // The store completes calls that are made as one, so a kept charge stays.
        let may_stay =
            !is_kept && !call.is_kept && (too_large(call) || attempt(call) || single(call));
        let may_stay = may_stay || (joins && call.is_kept);
        let stays = if stays[i] { call.cost } else { 0 };
        assert!(
            cost == stays || (may_stay && cost == call.cost),
            "call {i}: {cost} stays"
        );
    }
    result.is_some()
}

fn poll(all: &mut AllOf<'_>, polls: usize) -> Option<Result<bool, Error>> {
    let mut deciding = pin!(all.decide());
    (0..polls).find_map(|_| deciding.as_mut().now_or_never())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_drop_at_any_await_leaves_what_it_should(
        calls in proptest::collection::vec(call(), 1..=4),
        (refundable, confirms, resumes, joins) in (any::<bool>(), any::<bool>(), 0..6_usize, any::<bool>()),
    ) {
        let (mut calls, Case { waits, fails, .. }) = (calls.clone(), calls[0]);
        if joins {
            calls.iter_mut().for_each(|call| *call = Case { tries: false, waits, fails, ..*call });
        }
        assert!((0..100).any(|polls| drop_after(polls, resumes, &calls, refundable, confirms, joins)), "it ends");
    }
}
