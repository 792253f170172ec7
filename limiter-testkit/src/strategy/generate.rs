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

/// Returns one to `most` policies, whose limits may resemble the one before, in the same policy or in the policy before.
pub(super) fn policies(random: &mut TestRng, most: usize) -> Vec<Policy> {
    // Few and short, so that entries often reach the end of a window. One does not fit in 32 bits.
    const WINDOWS: [u64; 9] = [10, 1, 2, 3, 5, 12, 25, 60, (1 << 32) + 7];
    // A resolution: none, the shortest, about a sixth of the shortest window, and as much of it as possible.
    const FRACTIONS: [u64; 6] = [0, 0, u64::MAX, 6, 6, 1];
    let is_exact = one_in(random, 2);
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
                _ => pick(random, &WINDOWS),
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
    let policies = policies(random, 3);
    let limits = policies.iter().flat_map(Policy::limits);
    let windows: Vec<i64> = limits
        .map(|limit| limit.window().as_micros() as i64)
        .collect();
    let mut appends = Vec::new();
    let mut made = Vec::new();
    for number in 0..random.random_range(steps) {
        let policy = random.random_range(0..3) % policies.len();
        let max = policies[policy].smallest_max();
        // Costs above the maximum are all refused in the same way.
        let cost = match pick(random, &COSTS) {
            cost if cost > max + 1 && cost < u64::MAX => 1 + cost % (max + 1),
            cost => cost,
        };
        let place = Place {
            limiter: pick(random, &[1, 1, 1, 1, 0, 0, 2, 3]),
            key: random.random_range(0..keys),
        };
        let mut step = Step::new(Verb::Run(Mode::Acquire), cost);
        (step.policy, step.on) = (policy as u8, Some(place));
        match random.random_range(0..20) {
            10 | 11 => step.verb = Verb::Run(Mode::Peek),
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
            19 => (step.verb, step.cost) = (Verb::Reset, 0),
            _ => {}
        }
        if let Verb::Run(mode) = step.verb {
            step.id = random
                .random_ratio(3, 8)
                .then(|| CaseId::Fresh(random.random_range(0..2)));
            appends.extend((mode != Mode::Peek).then_some(number));
        }
        let some = random.random_range(0..9);
        let window = pick(random, &windows);
        step.after = match random.random_range(0..16) {
            0..=6 => 0,
            7 => 1,
            8 | 9 => some,
            10 => window - 1,
            11 => window,
            12 => window + 1,
            13 => -1,
            14 => -some,
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

pub(super) fn traffic(random: &mut TestRng) -> Case {
    const TIMES: [i64; 16] = [0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 7, 9, 19, 60, -4];
    const WINDOWS: [u64; 6] = [20, 35, 60, 60, 130, 200];
    let scale = pick(random, &[1_u64, 10, 60_000_000]);
    /// A maximum, a window, and whether it has the resolution.
    type Raw = (u64, u64, bool);
    let mut all: Vec<(Vec<Raw>, u64)> = Vec::new();
    for _ in 0..random.random_range(1..=2) {
        let limits = (0..random.random_range(1..=3)).map(|_| {
            let max = random.random_range(2..=12);
            (max, pick(random, &WINDOWS), one_in(random, 2))
        });
        all.push((limits.collect(), pick(random, &[0, 1, 3, 6, 20])));
    }
    if let ([(default, fraction), (own, none)], true) = (&mut all[..], one_in(random, 4)) {
        // Entries with a faster policy displace entries that the first counts. Exact limits give each a receipt.
        default.truncate(1);
        *own = vec![(own[0].0.min(default[0].0), 20, false)];
        (*fraction, *none) = (0, 0);
    }
    let policies = all.into_iter().map(|(raw, fraction)| {
        let limits = raw.into_iter();
        let limits: Vec<_> = limits
            .map(|(max, window, is_coarse)| (limit(max, window * scale), is_coarse))
            .collect();
        policy(&coarse(&limits, fraction), one_in(random, 2))
    });
    let policies = policies.collect();
    let scale = scale as i64;
    let mut steps = Vec::new();
    for number in 0..random.random_range(20..=60_usize) {
        let mut step = Step::new(Verb::Run(Mode::Acquire), random.random_range(1..=3));
        match random.random_range(0..20) {
            0 | 1 => step.verb = Verb::Run(Mode::Record),
            2..=6 => step.policy = 1,
            kind @ 7..=10 if number > 0 => {
                let issuer = number - 1 - random.random_range(0..number.min(12));
                (step.verb, step.cost) = match kind {
                    10 => (Verb::Renew(issuer), 0),
                    _ => (Verb::Settle(issuer), (step.cost - 1) / 2),
                };
            }
            _ => {}
        }
        if one_in(random, 8) && matches!(step.verb, Verb::Run(_)) {
            step.id = Some(CaseId::Fresh(number as u8));
        }
        step.after = pick(random, &TIMES) * scale + random.random_range(0..60) * (scale / 60);
        steps.push(step);
    }
    Case {
        policies,
        limiters: vec![LIMITERS[1]],
        start: START,
        steps,
    }
}
