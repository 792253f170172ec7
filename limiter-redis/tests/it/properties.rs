//! Random operations at the ends of the forms of entries, and on long logs: Redis agrees with the reference store in every field.
//! The conformance suite makes others.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, MAX_COST, Policy};
use limiter_testkit::conformance::{Case, CaseId, CaseLimiter, Operation, Place, Step, replay};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use testbed::server::Server;

use crate::support::{START, connect, limit, size, with_receipts};

/// The number of sequences of a property, `LIMITER_SEQUENCES`. Default: as many as a test has time for.
fn sequences(default: u32, full: u32) -> u32 {
    match std::env::var("LIMITER_SEQUENCES") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("LIMITER_SEQUENCES={text}: expected a number: {e}")),
        Err(_) => size(default, full),
    }
}

/// Replays generated cases on Redis, and compares with the reference store in every field. Keeps failures in a file next to this one.
fn agree(count: u32, cases: &impl Strategy<Value = Case>) {
    let server = Server::start().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let redis = Arc::new(runtime.block_on(connect(&server.url())));
    let tried = Cell::new(0);
    let mut runner = TestRunner::new(Config {
        cases: count,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    });
    let property = |case| {
        tried.set(tried.get() + 1);
        let key = |key: u8| format!("{}/{key}", tried.get()).into_bytes();
        runtime
            .block_on(replay(&redis, &case, key))
            .map_err(|error| TestCaseError::fail(error.to_string()))
    };
    runner
        .run(cases, property)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(tried.get() >= count);
    assert_eq!(
        server.command::<i64>(&["DBSIZE"]).unwrap(),
        0,
        "every sequence ends with a reset of its keys"
    );
}

/// The limiters of a case: without one, and with each of the first policies as the default.
fn limiters(defaults: u8) -> Vec<CaseLimiter> {
    let with_default = (0..defaults).map(|policy| CaseLimiter {
        name: 0,
        policy: Some(policy),
    });
    [CaseLimiter::NONE]
        .into_iter()
        .chain(with_default)
        .collect()
}

fn run(mode: Mode, limiter: u8, policy: u8, cost: u64, id: Option<CaseId>) -> Operation {
    Operation::Run {
        mode,
        on: Place { limiter, key: 0 },
        policy,
        cost,
        id,
    }
}

fn settle(step: u8, cost: u64, policy: u8) -> Operation {
    Operation::Settle {
        step: step.into(),
        on: None,
        cost,
        policy,
    }
}

/// From this running total on an entry is long, and from this age of the first entry.
const TOTAL: u64 = 1 << 39;
const AGE: u64 = 1 << 48;

/// Costs, times and policies that a short entry cannot hold.
fn extremes() -> impl Strategy<Value = Case> {
    const WINDOW: u64 = 1_000;
    const COSTS: [u64; 12] = [
        1,
        1,
        1,
        1,
        2,
        5,
        65_533,
        65_534,
        65_535,
        TOTAL - 3,
        TOTAL,
        MAX_COST,
    ];
    const TIMES: [u64; 12] = [0, 0, 0, 1, 1, 9, 10, 11, WINDOW, AGE - 1, AGE, AGE + 1];
    const POLICIES: [(u64, u64); 8] = [
        (3, 10),
        (65_535, 10),
        (65_536, WINDOW),
        (65_540, 2 * AGE),
        (TOTAL, 10),
        (TOTAL + 4, 2 * AGE),
        (MAX_COST, 10),
        (9, WINDOW),
    ];
    let policy = (vec(0..POLICIES.len(), 1..=2), any::<bool>()).prop_map(|(limits, attempts)| {
        let policy = Policy::new(
            limits
                .into_iter()
                .map(|i| limit(POLICIES[i].0, POLICIES[i].1)),
        )
        .unwrap();
        if attempts {
            policy.with_counting(Counting::Attempts)
        } else {
            policy
        }
    });
    let step = (
        0..16_u8,
        0..TIMES.len(),
        0..COSTS.len(),
        any::<u8>(),
        0..4_u8,
    )
        .prop_map(|(kind, time, cost, n, policy)| {
            let cost = COSTS[cost];
            let operation = match kind {
                0..=2 => settle(n, if kind == 0 { cost } else { 0 }, policy),
                _ => {
                    let modes = [Mode::Acquire, Mode::Record, Mode::Peek];
                    let mode = modes[usize::from(kind.saturating_sub(10) / 2).min(2)];
                    run(
                        mode,
                        n / 2,
                        policy,
                        cost,
                        (n > 250).then_some(CaseId::Fresh(n % 2)),
                    )
                }
            };
            Step {
                after: i64::try_from(TIMES[time]).unwrap(),
                operation,
            }
        });
    (vec(policy, 1..=3), vec(step, 1..=30)).prop_map(move |(policies, steps)| Case {
        policies,
        // Usually a default policy that differs from the operation's.
        limiters: limiters(3),
        start: START,
        steps: with_receipts(steps),
    })
}

#[test]
fn decisions_are_the_same_at_the_ends_of_the_forms() {
    agree(sequences(600, 2_000), &extremes());
}

/// Logs of over a hundred entries, usually appended on the fast path, with policies that see further or less far by time and
/// by cost. A quarter of the policies have a resolution.
fn long_logs() -> impl Strategy<Value = Case> {
    const LIMITS: [(u64, u64); 9] = [
        (40, 30),
        (150, 500),
        (90, 500),
        (200, 120),
        (20, 2_000),
        (65_600, 300),
        (70_000, 2_000),
        (250, 2_000),
        (1_000, 60),
    ];
    let policy = (vec(0..LIMITS.len(), 1..=2), 0..8_u8).prop_map(move |(limits, kind)| {
        let limit = |i: usize| match (limit(LIMITS[i].0, LIMITS[i].1), kind) {
            (limit, 6) => limit.with_resolution(Duration::from_micros(1)).unwrap(),
            (limit, 7) => limit.with_resolution(Duration::from_micros(10)).unwrap(),
            (limit, _) => limit,
        };
        let policy = Policy::new(limits.into_iter().map(limit)).unwrap();
        if kind % 6 == 0 {
            policy.with_counting(Counting::Attempts)
        } else {
            policy
        }
    });
    // Usually costs of 1; large ones in half of the cases.
    let step = (
        0..40_u8,
        0..6_i64,
        0..20_usize,
        0..4_u8,
        0..4_u8,
        any::<u8>(),
    );
    (vec(policy, 2..=4), vec(step, 200..=400), any::<bool>()).prop_map(
        |(policies, steps, large)| {
            let step = |(kind, after, cost, policy, limiter, n): (u8, i64, usize, u8, u8, u8)| {
                let cost = match (cost, large) {
                    (0..=1, false) => 2 + cost as u64,
                    (0..=4, true) => 500 * (1 + cost as u64),
                    _ => 1,
                };
                let operation = match kind {
                    0 => run(Mode::Record, limiter, policy, cost, None),
                    1 | 2 => run(Mode::Peek, limiter, policy, cost, None),
                    3 => settle(n, u64::from(n % 4), policy),
                    _ => run(Mode::Acquire, limiter, policy, cost, None),
                };
                Step {
                    after: after - 1,
                    operation,
                }
            };
            let steps = with_receipts(steps.into_iter().map(step).collect());
            let first = CaseLimiter {
                name: 0,
                policy: Some(0),
            };
            Case {
                policies,
                limiters: [vec![first], limiters(2)].concat(),
                start: START,
                steps,
            }
        },
    )
}

#[test]
fn long_logs_under_changing_policies_agree_with_the_oracle() {
    agree(sequences(40, 150), &long_logs());
}
