//! Random policies and cases.

use std::ops::RangeInclusive;

use limiter_core::store::Mode;
use limiter_core::{Limit, MAX_COST, Policy, Timestamp};
use proptest::prelude::RngExt as _;
use proptest::test_runner::TestRng;

use crate::conformance::policies::{START, coarse, leased, limit, policy};
use crate::conformance::{Case, CaseId, CaseLimiter, Place, Step, Verb};

fn pick<T: Copy>(random: &mut TestRng, values: &[T]) -> T {
    values[random.random_range(0..values.len())]
}

fn one_in(random: &mut TestRng, count: u32) -> bool {
    random.random_ratio(1, count)
}

/// Returns one to `most` policies, whose limits may resemble the one before, in the same policy or in the policy before. With `traffic`,
/// the windows are multiples of that time.
pub(super) fn policies(random: &mut TestRng, most: usize, traffic: Option<u64>) -> Vec<Policy> {
    // Few and short, so that entries often reach the end of a window. One does not fit in 32 bits.
    const WINDOWS: [u64; 9] = [10, 1, 2, 3, 5, 12, 25, 60, (1 << 32) + 7];
    const TRAFFIC_WINDOWS: [u64; 6] = [20, 35, 60, 60, 130, 200];
    // A resolution: none, the shortest, about a sixth of the shortest window, and as much of it as possible.
    const FRACTIONS: [u64; 6] = [0, 0, u64::MAX, 6, 6, 1];
    let is_exact = traffic.is_none() && one_in(random, 2);
    let mut last = None::<(u64, u64)>;
    let mut policies = Vec::new();
    for _ in 0..random.random_range(1..=most) {
        let mut limits: Vec<(Limit, bool)> = Vec::new();
        for _ in 0..random.random_range(1..=3) {
            let max = match (random.random_range(0..16), last) {
                (12, Some((max, _))) if max < MAX_COST => {
                    (max + random.random_range(0..=2)).max(2) - 1
                }
                (14, _) => random.random_range(19..=96),
                (15, _) => MAX_COST,
                _ => random.random_range(1..=8),
            };
            let window = match (last, random.random_range(0..12)) {
                (Some((_, window)), change @ 0..=2) => (window + change).max(2) - 1,
                _ => match traffic {
                    Some(unit) => unit * pick(random, &TRAFFIC_WINDOWS),
                    None => pick(random, &WINDOWS),
                },
            };
            last = Some((max, window));
            let made = limit(max, window);
            let made = if one_in(random, 16) {
                leased(made, 1)
            } else {
                made
            };
            limits.push((made, one_in(random, 2)));
        }
        if one_in(random, 16) {
            for i in 0..8 - limits.len() {
                let (of, is_coarse) = limits[i];
                let max = of.max().min(MAX_COST - 1) + 1;
                limits.push((limit(max, of.window().as_micros() + 2), is_coarse));
            }
        }
        let fraction = if is_exact {
            0
        } else {
            pick(random, &FRACTIONS)
        };
        policies.push(policy(&coarse(&limits, fraction), one_in(random, 2)));
    }
    policies
}

/// The limiters of a case: one without a default policy, one with, the same one with another default, and one with another name.
const LIMITERS: [CaseLimiter; 4] = {
    const fn limiter(name: u8, policy: Option<u8>) -> CaseLimiter {
        CaseLimiter { name, policy }
    }
    [
        limiter(0, None),
        limiter(0, Some(0)),
        limiter(0, Some(1)),
        limiter(1, Some(0)),
    ]
};

pub(super) fn case(random: &mut TestRng, steps: RangeInclusive<usize>, keys: u8) -> Case {
    // The last two are refused or saturate.
    const COSTS: [u64; 14] = [1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 0, u64::MAX];
    // Traffic keeps the limits of one log nearly full for a long time.
    const TRAFFIC_TIMES: [i64; 16] = [0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 7, 9, 19, 60, -4];
    let count = random.random_range(steps);
    let traffic = random
        .random_ratio(count.min(30) as u32, 60)
        .then(|| pick(random, &[1_u64, 10, 60_000_000]));
    let policies = policies(random, 3, traffic);
    let limits = policies.iter().flat_map(Policy::limits);
    let windows: Vec<i64> = limits
        .map(|limit| limit.window().as_micros() as i64)
        .collect();
    let mut appends = Vec::new();
    let mut made = Vec::new();
    for number in 0..count {
        let policy = random.random_range(0..3) % policies.len();
        let max = policies[policy].smallest_max();
        // Costs above the maximum are all refused in the same way.
        let cost = match pick(
            random,
            if traffic.is_some() {
                &COSTS[..7]
            } else {
                &COSTS
            },
        ) {
            cost if cost > max + 1 && cost < u64::MAX => 1 + cost % (max + 1),
            cost => cost,
        };
        let place = Place {
            limiter: if traffic.is_some() {
                1
            } else {
                pick(random, &[1, 1, 1, 1, 0, 0, 2, 3])
            },
            key: if traffic.is_some() {
                0
            } else {
                random.random_range(0..keys)
            },
        };
        let mut step = Step::new(Verb::Run(Mode::Acquire), cost);
        (step.policy, step.on) = (policy as u8, Some(place));
        match random.random_range(0..20) {
            10 | 11 if traffic.is_none() => step.verb = Verb::Run(Mode::Peek),
            12 | 13 => step.verb = Verb::Run(Mode::Record),
            kind @ 14..=18 if !appends.is_empty() => {
                step.verb = Verb::Settle(pick(random, &appends));
                // Rarely on a log that did not issue the receipt.
                step.on = step.on.filter(|_| one_in(random, 8));
                step.cost = if kind < 16 { 0 } else { cost };
                if kind == 18 {
                    (step.verb, step.cost) = (Verb::Renew(pick(random, &appends)), 0);
                    // So that renewals are renewed.
                    appends.push(number);
                }
            }
            19 if traffic.is_none() => (step.verb, step.cost) = (Verb::Reset, 0),
            _ => {}
        }
        if let Verb::Run(mode) = step.verb {
            let (chance, ids) = if traffic.is_some() { (1, 60) } else { (3, 2) };
            step.id = random
                .random_ratio(chance, 8)
                .then(|| CaseId::Fresh(random.random_range(0..ids)));
            appends.extend((mode != Mode::Peek).then_some(number));
        }
        let some = random.random_range(0..9);
        let window = pick(random, &windows);
        let units = pick(random, &TRAFFIC_TIMES);
        step.after = match (random.random_range(0..16), traffic) {
            (_, Some(unit)) => units * unit as i64 + random.random_range(0..unit) as i64,
            (0..=6, None) => 0,
            (7, _) => 1,
            (8 | 9, _) => some,
            (10, _) => window - 1,
            (11, _) => window,
            (12, _) => window + 1,
            (13, _) => -1,
            (14, _) => -some,
            _ => -window,
        };
        made.push(step);
    }
    // Usually today, sometimes at the epoch or near the largest timestamp.
    let start = [0, Timestamp::MAX.as_micros() - 150];
    Case {
        policies,
        limiters: LIMITERS.to_vec(),
        start: *start.get(random.random_range(0..8)).unwrap_or(&START),
        steps: made,
    }
}

/// Makes most operations part of the call before.
pub(super) fn join(random: &mut TestRng, case: &mut Case) {
    for number in 1..case.steps.len() {
        let runs = |step: &Step| matches!(step.verb, Verb::Run(_));
        let both = case.steps[number - 1..=number].iter().all(runs);
        let step = &mut case.steps[number];
        step.joint.is_advisory = one_in(random, 4);
        step.joint.keeps_charge = one_in(random, 5);
        if both && !one_in(random, 4) {
            (step.joint.with_previous, step.after) = (true, 0);
        }
    }
}
