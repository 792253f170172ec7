//! Random operations at the ends of the forms of entries, and on long logs: Redis agrees with the reference store in every field.
//! The conformance suite makes others.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, MAX_COST, Policy};
use limiter_testkit::conformance::{Case, CaseId, CaseLimiter, Place, Step, Verb, replay};
use testbed::server::Server;

use crate::support::{START, connect, limit, random_below, size};

/// From this running total on an entry is long, and from this age of the first entry.
const TOTAL: u64 = 1 << 39;
const AGE: u64 = 1 << 48;

/// Replays random cases, each from its own seed, and compares with the reference store in every field. The number of cases is
/// `LIMITER_SEQUENCES`, by default as many as a test has time for.
async fn agree(default: u64, full: u64, case: impl Fn(&mut dyn FnMut(u64) -> u64) -> Case) {
    let server = Server::start().unwrap();
    let redis = Arc::new(connect(&server.url()).await);
    let count = std::env::var("LIMITER_SEQUENCES").map_or(size(default, full), |text| {
        text.parse()
            .unwrap_or_else(|e| panic!("LIMITER_SEQUENCES={text}: expected a number: {e}"))
    });
    for seed in 0..count {
        let case = case(&mut random_below(seed * 0x9e37_79b9));
        let key = |key: u8| format!("{seed}/{key}").into_bytes();
        let replayed = replay(&redis, &case, key).await;
        replayed.unwrap_or_else(|mismatch| panic!("case {seed}: {mismatch}"));
    }
    // Every case ends with a reset of its keys.
    assert_eq!(server.command::<i64>(&["DBSIZE"]).unwrap(), 0);
}

/// Returns a case with one key and three limiters: without a default policy, and with each of the first two. `next` returns a step
/// whose receipt is the number of an append, from the newest on.
fn case(policies: Vec<Policy>, steps: u64, mut next: impl FnMut() -> Step) -> Case {
    let limiter = |policy| CaseLimiter { name: 0, policy };
    let (mut appends, mut made) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let mut step = next();
        match &mut step.verb {
            Verb::Settle(back) => match appends.len() {
                0 => continue,
                count => *back = appends[count - 1 - *back % count],
            },
            Verb::Run(Mode::Peek) | Verb::Reset => {}
            Verb::Run(_) => appends.push(made.len()),
        }
        made.push(step);
    }
    Case {
        policies,
        limiters: [None, Some(0), Some(1)].map(limiter).to_vec(),
        start: START,
        steps: made,
    }
}

fn one_of<T: Copy>(pick: &mut dyn FnMut(u64) -> u64, values: &[T]) -> T {
    values[pick(values.len() as u64) as usize]
}

fn policy(limits: impl IntoIterator<Item = limiter_core::Limit>, attempts: bool) -> Policy {
    let policy = Policy::new(limits).unwrap();
    if attempts {
        policy.with_counting(Counting::Attempts)
    } else {
        policy
    }
}

/// Costs, times and policies that a short entry cannot hold.
#[tokio::test]
async fn decisions_are_the_same_at_the_ends_of_the_forms() {
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
    const TIMES: [u64; 12] = [0, 0, 0, 1, 1, 9, 10, 11, 1_000, AGE - 1, AGE, AGE + 1];
    const LIMITS: [(u64, u64); 8] = [
        (3, 10),
        (65_535, 10),
        (65_536, 1_000),
        (65_540, 2 * AGE),
        (TOTAL, 10),
        (TOTAL + 4, 2 * AGE),
        (MAX_COST, 10),
        (9, 1_000),
    ];
    agree(600, 2_000, |pick| {
        let policies = (0..=pick(3)).map(|_| {
            let limits: Vec<_> = (0..=pick(2)).map(|_| one_of(pick, &LIMITS)).collect();
            policy(
                limits.into_iter().map(|(max, window)| limit(max, window)),
                pick(2) > 0,
            )
        });
        let (policies, steps) = (policies.collect(), 1 + pick(30));
        case(policies, steps, || {
            let (kind, cost) = (pick(16), one_of(pick, &COSTS));
            let verb = match kind {
                0..=2 => Verb::Settle(pick(30) as usize),
                3..=11 => Verb::Run(Mode::Acquire),
                12 | 13 => Verb::Run(Mode::Record),
                _ => Verb::Run(Mode::Peek),
            };
            let is_refund = kind == 1 || kind == 2;
            let mut step = Step::new(verb, if is_refund { 0 } else { cost });
            (step.after, step.policy) = (one_of(pick, &TIMES) as i64, pick(4) as u8);
            if kind > 2 {
                let limiter = pick(3) as u8;
                step.on = Some(Place { limiter, key: 0 });
                step.id = (pick(50) == 0).then(|| CaseId::Fresh(pick(2) as u8));
            }
            step
        })
    })
    .await;
}

/// Logs of over a hundred entries, usually appended on the fast path, with policies that see further or less far by time and
/// by cost. A quarter of the policies have a resolution.
#[tokio::test]
async fn long_logs_under_changing_policies_agree_with_the_oracle() {
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
    agree(40, 150, |pick| {
        let policies = (0..2 + pick(3)).map(|_| {
            let kind = pick(8);
            let limit = |(max, window)| match (limit(max, window), kind) {
                (limit, 6) => limit.with_resolution(Duration::from_micros(1)).unwrap(),
                (limit, 7) => limit.with_resolution(Duration::from_micros(10)).unwrap(),
                (limit, _) => limit,
            };
            let limits: Vec<_> = (0..=pick(2))
                .map(|_| limit(one_of(pick, &LIMITS)))
                .collect();
            policy(limits, kind % 6 == 0)
        });
        // Usually costs of 1; large ones in half of the cases.
        let (policies, steps, large) = (policies.collect(), 200 + pick(200), pick(2) > 0);
        case(policies, steps, || {
            let cost = match (pick(20), large) {
                (n @ 0..=1, false) => 2 + n,
                (n @ 0..=4, true) => 500 * (1 + n),
                _ => 1,
            };
            let mut step = match pick(40) {
                0 => Step::new(Verb::Run(Mode::Record), cost),
                1 | 2 => Step::new(Verb::Run(Mode::Peek), cost),
                3 => Step::new(Verb::Settle(pick(200) as usize), pick(4)),
                _ => Step::new(Verb::Run(Mode::Acquire), cost),
            };
            if !matches!(step.verb, Verb::Settle(_)) {
                // Usually a default policy that differs from the operation's.
                let limiter = one_of(pick, &[0, 1, 1, 2]);
                step.on = Some(Place { limiter, key: 0 });
            }
            (step.after, step.policy) = (pick(6) as i64 - 1, pick(4) as u8);
            step
        })
    })
    .await;
}
