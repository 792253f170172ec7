//! Random sequences.

use std::ops::RangeInclusive;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{MAX_COST, Policy, Timestamp};

use super::case::{Case, CaseId, CaseLimiter, Place, Step, Verb};
use super::policies::{START, coarse, limit, policy};

/// Makes random numbers from a seed, by `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below((range.end() - range.start() + 1) as usize) as u64
    }
}

/// Returns policies with limits of 1 to 8 units within windows of 1 to 60 µs or 72 minutes. A few have up to 100 units, no
/// reachable maximum, a lease, or eight limits. Many windows differ from the one before, in the same policy or in the policy
/// before, by a microsecond, some maxima by a unit.
fn policies(random: &mut Random) -> Vec<Policy> {
    // Few and short, so that entries often reach the end of a window. One does not fit in 32 bits.
    const WINDOWS: [u64; 9] = [10, 1, 2, 3, 5, 12, 25, 60, (1 << 32) + 7];
    // A resolution: none, the shortest, about a sixth of the shortest window, and as much of it as possible.
    const FRACTIONS: [u64; 6] = [0, 0, u64::MAX, 6, 6, 1];
    let (is_exact, mut previous, mut previous_max) = (random.one_in(2), None::<u64>, None::<u64>);
    let mut policies = Vec::new();
    for _ in 0..=random.below(3) {
        let mut limits = Vec::new();
        for _ in 0..=random.below(3) {
            let (kind, max) = (random.below(16), random.within(1..=8));
            let max = match (kind, previous_max) {
                (12, Some(previous)) => (previous + max % 3).saturating_sub(1).max(1),
                (14, _) => 8 + max * 11,
                (15, _) => MAX_COST,
                _ => max,
            };
            let window = match (previous, random.below(12)) {
                (Some(previous), 0) => previous + 1,
                (Some(previous @ 2..), 1) => previous - 1,
                (Some(previous), 2) => previous,
                _ => random.pick(&WINDOWS),
            };
            (previous, previous_max) = (Some(window), Some(max).filter(|max| *max < MAX_COST));
            let leased = limit(max, window.saturating_sub(1)).with_lease(Duration::from_micros(1));
            let limit = match leased {
                Ok(leased) if kind == 13 => leased,
                _ => limit(max, window),
            };
            limits.push((limit, random.one_in(2)));
        }
        for i in 0..if random.one_in(16) {
            8 - limits.len()
        } else {
            0
        } {
            let (of, is_coarse) = limits[i];
            let max = of.max().min(MAX_COST - 1) + 1;
            limits.push((limit(max, of.window().as_micros() + 2), is_coarse));
        }
        let fraction = if is_exact { 0 } else { random.pick(&FRACTIONS) };
        policies.push(policy(&coarse(&limits, fraction), random.one_in(2)));
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

/// Returns a sequence on two keys, through limiters with two names, under 1 to 3 policies.
///
/// It contains all operations, costs up to and above the maximum, repeated ids, and settlements of any earlier receipt. Time stands
/// still, steps back, or moves to just before, exactly to, or just after the end of a window.
pub(crate) fn case(random: &mut Random, steps: RangeInclusive<u64>) -> Case {
    // The last two are refused or saturate.
    const COSTS: [u64; 14] = [1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 0, u64::MAX];
    let policies = policies(random);
    let windows: Vec<i64> = policies
        .iter()
        .flat_map(|policy| policy.limits().iter())
        .map(|limit| limit.window().as_micros() as i64)
        .collect();
    let (mut appends, mut made) = (Vec::new(), Vec::new());
    for number in 0..random.within(steps) as usize {
        let (policy, kind, id) = (random.below(3), random.below(20), random.below(8) as u8);
        let max = policies[policy % policies.len()].smallest_max();
        // Costs above the maximum are all refused in the same way.
        let cost = match random.pick(&COSTS) {
            cost if cost > max + 1 && cost < u64::MAX => 1 + cost % (max + 1),
            cost => cost,
        };
        let place = Place {
            limiter: random.pick(&[1, 1, 1, 1, 0, 0, 2, 3]),
            key: random.below(2) as u8,
        };
        let mut step = Step::new(Verb::Run(Mode::Acquire), cost);
        (step.policy, step.on) = (policy as u8, Some(place));
        match kind {
            10 | 11 => step.verb = Verb::Run(Mode::Peek),
            12 | 13 => step.verb = Verb::Run(Mode::Record),
            14..=18 if !appends.is_empty() => {
                step.verb = Verb::Settle(random.pick(&appends));
                // Rarely on a log that did not issue the receipt.
                step.on = step.on.filter(|_| id == 0);
                step.cost = if kind < 16 { 0 } else { cost };
                if kind == 18 {
                    step.verb = Verb::Renew(random.pick(&appends));
                    // So that renewals are renewed.
                    appends.push(number);
                }
            }
            19 => step.verb = Verb::Reset,
            _ => {}
        }
        if let Verb::Run(mode) = step.verb {
            step.id = (id > 4).then_some(CaseId::Fresh(id % 2));
            appends.extend((mode != Mode::Peek).then_some(number));
        }
        let (some, window) = (random.below(9) as i64, random.pick(&windows));
        step.after = match random.below(16) {
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
        start: start.get(random.below(8)).copied().unwrap_or(START),
        steps: made,
    }
}

/// Returns a sequence on one key that keeps limits nearly full, under up to two policies, at times that suit the windows.
pub(crate) fn traffic(random: &mut Random) -> Case {
    const TIMES: [i64; 16] = [0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 7, 9, 19, 60, -4];
    let scale = random.pick(&[1, 10, 60_000_000]);
    let raw = |random: &mut Random| {
        let max = random.within(2..=12);
        (
            max,
            random.pick(&[20, 35, 60, 60, 130, 200]) * scale,
            random.one_in(2),
        )
    };
    let mut all: Vec<(Vec<_>, u64)> = Vec::new();
    for _ in 0..=random.below(2) {
        let limits = (0..=random.below(3)).map(|_| raw(random)).collect();
        all.push((limits, random.pick(&[0, 1, 3, 6, 20])));
    }
    if let ([(default, fraction), (own, none)], true) = (&mut all[..], random.one_in(4)) {
        // Entries with a faster policy displace entries that the first counts. Exact limits give each a receipt.
        default.truncate(1);
        *own = vec![(own[0].0.min(default[0].0), 20 * scale, false)];
        (*fraction, *none) = (0, 0);
    }
    let mut policies = Vec::new();
    for (raw, fraction) in all {
        let limits: Vec<_> = raw
            .iter()
            .map(|(max, window, is_coarse)| (limit(*max, *window), *is_coarse))
            .collect();
        policies.push(policy(&coarse(&limits, fraction), random.one_in(2)));
    }
    let (scale, mut steps) = (scale as i64, Vec::new());
    for number in 0..random.within(20..=60) as usize {
        let (mut step, kind) = (
            Step::new(Verb::Run(Mode::Acquire), random.within(1..=3)),
            random.below(20),
        );
        match kind {
            0 | 1 => step.verb = Verb::Run(Mode::Record),
            2..=6 => step.policy = 1,
            7..=10 if number > 0 => {
                step.verb = Verb::Settle(number - 1 - random.below(number.min(12)));
                step.cost = (step.cost - 1) / 2;
                if kind == 10 {
                    step.verb = Verb::Renew(number - 1 - random.below(number.min(12)));
                }
            }
            _ => {}
        }
        if random.one_in(8) && matches!(step.verb, Verb::Run(_)) {
            step.id = Some(CaseId::Fresh(number as u8));
        }
        step.after = random.pick(&TIMES) * scale + random.below(60) as i64 * (scale / 60);
        steps.push(step);
    }
    Case {
        policies,
        limiters: vec![LIMITERS[1]],
        start: START,
        steps,
    }
}
