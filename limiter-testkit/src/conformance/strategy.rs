//! Random sequences.

use std::ops::RangeInclusive;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, Limit, MAX_COST, Policy, Timestamp, Window};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::conformance::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};

/// The number of keys in a case.
const KEYS: u8 = 2;
/// Few and short, so that entries often reach the end of a window. One does not fit in 32 bits.
const WINDOWS: [u64; 9] = [10, 1, 2, 3, 5, 12, 25, 60, (1 << 32) + 7];
/// A policy's resolution: none, the shortest, about a sixth of its shortest window, and as much of it as possible.
const FRACTIONS: [u64; 6] = [0, 0, u64::MAX, 6, 6, 1];
/// Every resolution, in microseconds.
const RESOLUTIONS: [u64; 13] = {
    let (second, hour) = (1_000_000, 3_600_000_000);
    [
        1,
        10,
        100,
        1_000,
        10_000,
        100_000,
        second,
        10 * second,
        60 * second,
        600 * second,
        hour,
        6 * hour,
        24 * hour,
    ]
};
/// The last two are refused or saturate.
const COSTS: [u64; 14] = [1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 0, u64::MAX];
/// When a sequence starts: usually today, sometimes at the epoch or near the largest timestamp.
const STARTS: [u64; 8] = [
    START,
    START,
    START,
    START,
    START,
    START,
    0,
    Timestamp::MAX.as_micros() - 150,
];
pub(crate) const START: u64 = 1_700_000_000_000_000;

/// A policy as numbers: limits, whether there are eight, which resolution, and whether it counts attempts.
type RawPolicy = (Vec<RawLimit>, u8, usize, bool);
/// A limit as numbers: the kind and the size of its maximum, its window, and whether it has the policy's resolution.
type RawLimit = (u8, u64, usize, u8, bool);

fn raw_policies() -> impl Strategy<Value = RawPolicy, Tree: Send> {
    let limit = (
        0..16_u8,
        1..=8_u64,
        0..WINDOWS.len(),
        0..12_u8,
        any::<bool>(),
    );
    (
        vec(limit, 1..=3),
        0..16_u8,
        0..FRACTIONS.len(),
        any::<bool>(),
    )
}

/// Returns policies with limits of 1 to 8 units within windows of 1 to 60 µs or 72 minutes. A few have up to 100 units, or no
/// reachable maximum. Many windows differ from the one before, in the same policy or in the policy before, by a
/// microsecond, some maxima by a unit. A few have a lease.
fn built(raw: Vec<RawPolicy>) -> Vec<Policy> {
    let (mut previous, mut previous_max) = (None, None::<u64>);
    let mut built = |(kind, max, window, near, is_coarse): RawLimit| {
        let max = match (kind, previous_max) {
            (12, Some(previous)) => (previous + max % 3).saturating_sub(1).max(1),
            (14, _) => 8 + max * 11,
            (15, _) => MAX_COST,
            _ => max,
        };
        let window = match (previous, near) {
            (Some(previous), 0) => previous + 1,
            (Some(2..), 1) => previous.unwrap_or_default() - 1,
            (Some(previous), 2) => previous,
            _ => WINDOWS[window],
        };
        (previous, previous_max) = (Some(window), Some(max).filter(|max| *max < MAX_COST));
        let limit = if kind == 13 {
            leased(max, window)
        } else {
            limit(max, window)
        };
        (limit, is_coarse)
    };
    let policy = |(limits, kind, fraction, attempts): RawPolicy| {
        let mut limits: Vec<_> = limits.into_iter().map(&mut built).collect();
        for i in 0..if kind == 15 { 8 - limits.len() } else { 0 } {
            let (of, is_coarse) = limits[i];
            let max = of.max().min(MAX_COST - 1) + 1;
            limits.push((limit(max, of.window().as_micros() + 2), is_coarse));
        }
        policy(&coarse(limits, FRACTIONS[fraction]), attempts)
    };
    raw.into_iter().map(policy).collect()
}

/// Returns a limit that counts `window`, with the shortest lease if it may have one.
fn leased(max: u64, window: u64) -> Limit {
    limit(max, window.saturating_sub(1))
        .with_lease(Duration::from_micros(1))
        .unwrap_or_else(|_| limit(max, window))
}

/// Returns limits of which some have a resolution: this fraction of the shortest of their windows. Exact for 0.
pub(crate) fn coarse(limits: impl IntoIterator<Item = (Limit, bool)>, fraction: u64) -> Vec<Limit> {
    let limits: Vec<_> = limits.into_iter().collect();
    let some = limits.iter().filter(|(_, is_coarse)| *is_coarse);
    let shortest = some.map(|(limit, _)| limit.window().as_micros()).min();
    let part = shortest.and_then(|shortest| shortest.checked_div(fraction));
    let micros = part.map_or(0, |part| part.max(1));
    let each = limits.into_iter().map(|(limit, is_coarse)| {
        if is_coarse {
            resolved(limit, micros)
        } else {
            limit
        }
    });
    each.collect()
}

const FALLBACK: Limit = match Limit::with_window(1, Window::MIN) {
    Ok(limit) => limit,
    Err(_) => unreachable!(),
};

/// Returns a valid limit. The strategies generate only valid numbers.
pub(crate) fn limit(max: u64, window: u64) -> Limit {
    let window = Window::from_micros(window).unwrap_or(Window::MIN);
    Limit::with_window(max, window).unwrap_or(FALLBACK)
}

/// Returns the limit with the longest resolution up to `micros` that it may have. Exact for 0.
pub(crate) fn resolved(limit: Limit, micros: u64) -> Limit {
    let longest = micros.min(limit.window().as_micros());
    let resolution = RESOLUTIONS
        .into_iter()
        .rfind(|resolution| *resolution <= longest);
    resolution
        .and_then(|micros| limit.with_resolution(Duration::from_micros(micros)).ok())
        .unwrap_or(limit)
}

/// Returns policies of 1 to 3 limits, rarely of 8, in both counting modes.
pub fn policies() -> impl Strategy<Value = Policy, Tree: Send> {
    raw_policies().prop_map(|raw| built(vec![raw]).remove(0))
}

pub(crate) fn policy(limits: &[Limit], attempts: bool) -> Policy {
    let counting = if attempts {
        Counting::Attempts
    } else {
        Counting::Admitted
    };
    let policy = Policy::new(limits.iter().copied());
    policy
        .unwrap_or_else(|_| Policy::from(FALLBACK))
        .with_counting(counting)
}

/// The limiters of a case: one without a name, one with a default policy, the same one with another default, and one
/// with another name.
const LIMITERS: [CaseLimiter; 4] = [
    CaseLimiter::NONE,
    CaseLimiter {
        name: 0,
        policy: Some(0),
    },
    CaseLimiter {
        name: 0,
        policy: Some(1),
    },
    CaseLimiter {
        name: 1,
        policy: Some(0),
    },
];
/// Indices of the limiters. Most operations use the limiter with a default policy.
const PICKS: [u8; 8] = [1, 1, 1, 1, 0, 0, 2, 3];

/// Returns sequences of this length on two keys, through limiters with two names, under 1 to 3 policies.
///
/// They contain all operations, costs up to and above the maximum, repeated ids, and settlements of any earlier
/// receipt. Time stands still, steps back, or moves to just before, exactly to, or just after the end of a window.
///
/// Shrinking drops steps and simplifies numbers. Settlements keep their receipts.
pub fn cases(steps: RangeInclusive<usize>) -> impl Strategy<Value = Case, Tree: Send> {
    let log = (0..KEYS, 0..PICKS.len());
    // Dropping an item of a list would renumber the items after it, and settlements would use other receipts. A flag
    // avoids that.
    let is_kept = proptest::bool::weighted(1.0);
    let step = (
        is_kept,
        0..20_u8,
        log,
        0..3_u8,
        0..COSTS.len(),
        0..8_u8,
        0..16_u8,
        0..9_u8,
        any::<u8>(),
    );
    let steps = steps
        .no_shrink()
        .prop_flat_map(move |count| vec(step.clone(), count));
    (
        vec(raw_policies(), 1..=3),
        any::<bool>(),
        0..STARTS.len(),
        steps,
    )
        .prop_map(|(mut policies, is_exact, start, raw)| {
            if is_exact {
                policies
                    .iter_mut()
                    .for_each(|(.., fraction, _)| *fraction = 0);
            }
            let policies = built(policies);
            let windows: Vec<u64> = policies
                .iter()
                .flat_map(|policy| {
                    policy
                        .limits()
                        .iter()
                        .map(|limit| limit.window().as_micros())
                })
                .collect();
            let (mut appends, mut steps, mut kept) = (Vec::new(), Vec::new(), Vec::new());
            for (number, (is_kept, kind, (key, pick), policy, cost, id, time, some, receipt)) in
                raw.into_iter().enumerate()
            {
                let smallest = policies[usize::from(policy) % policies.len()].smallest_max();
                let window = windows[usize::from(receipt) % windows.len()] as i64;
                let (on, cost) = (
                    Place {
                        limiter: PICKS[pick],
                        key,
                    },
                    cost_near(smallest, COSTS[cost]),
                );
                let settled = appends
                    .get(usize::from(receipt) % appends.len().max(1))
                    .copied();
                let operation = operation(kind, settled, (on, policy, cost, id));
                if matches!(
                    operation,
                    Operation::Run {
                        mode: Mode::Acquire | Mode::Record,
                        ..
                    }
                ) {
                    appends.push(number);
                }
                steps.push(Step {
                    after: after(time, i64::from(some), window),
                    operation,
                });
                kept.push(is_kept);
            }
            Case {
                policies,
                limiters: LIMITERS.to_vec(),
                start: STARTS[start],
                steps,
            }
            .with_steps(|step| kept[step])
        })
}

fn after(time: u8, some: i64, window: i64) -> i64 {
    match time {
        0..=6 => 0,
        7 => 1,
        8 | 9 => some,
        10 => window - 1,
        11 => window,
        12 => window + 1,
        13 => -1,
        14 => -some,
        _ => -window,
    }
}

/// Returns the cost, or at most `max + 1`. Higher costs are refused in the same way.
fn cost_near(max: u64, cost: u64) -> u64 {
    if cost > max + 1 && cost < u64::MAX {
        1 + cost % (max + 1)
    } else {
        cost
    }
}

/// Builds an operation from random numbers. `settled` is a step that may have returned a receipt.
fn operation(
    kind: u8,
    settled: Option<usize>,
    (on, policy, cost, id): (Place, u8, u64, u8),
) -> Operation {
    let mode = match (kind, settled) {
        (10 | 11, _) => Mode::Peek,
        (12 | 13, _) => Mode::Record,
        (14..=18, Some(step)) => {
            // Rarely on a log that did not issue the receipt.
            let (on, cost) = ((id == 0).then_some(on), if kind < 16 { 0 } else { cost });
            return Operation::Settle {
                step,
                on,
                cost,
                policy,
            };
        }
        (19, _) => return Operation::Reset { on },
        _ => Mode::Acquire,
    };
    Operation::Run {
        mode,
        on,
        policy,
        cost,
        id: (id > 4).then_some(CaseId::Fresh(id % 2)),
    }
}
