//! Every short sequence.

use limiter_core::Policy;
use limiter_core::store::Mode;

use super::case::{Case, CaseLimiter, Operation, Step};
use super::strategy::{START, limit, policy};

/// The policies that every short sequence runs under.
pub(super) fn policies() -> Vec<Policy> {
    let (one, two, three) = (limit(1, 1), limit(2, 10), limit(3, 10));
    vec![
        policy(&[one], false),
        policy(&[three], false),
        policy(&[three], true),
        policy(&[two, limit(3, 11)], false),
        policy(&[limit(4, 10), limit(3, 9)], true),
    ]
}

/// The operations of a short sequence and the time steps before each.
struct Alphabet {
    operations: Vec<Operation>,
    steps: Vec<i64>,
}

impl Alphabet {
    fn of(policy: &Policy) -> Self {
        let (max, window) = (policy.smallest_max(), policy.longest_window().as_micros() as i64);
        let run = |mode, cost, id| Operation::Run { mode, limiter: 0, key: 0, policy: 0, cost, id };
        let mut operations = vec![
            run(Mode::Acquire, 1, None),
            run(Mode::Acquire, 2, None),
            run(Mode::Acquire, max, None),
            run(Mode::Acquire, max + 1, None),
            run(Mode::Acquire, 1, Some(7)),
            run(Mode::Record, 1, None),
            run(Mode::Record, max + 1, None),
            run(Mode::Peek, max, None),
            Operation::Settle { receipt: 0, cost: 0, policy: 0 },
            Operation::Settle { receipt: 1, cost: 0, policy: 0 },
            Operation::Settle { receipt: 0, cost: 2, policy: 0 },
            Operation::Reset { limiter: 0, key: 0 },
        ];
        let mut steps = vec![0, 1, window - 1, window, window + 1, -1];
        let mut kept = Vec::new();
        operations.retain(|operation| {
            !kept.contains(operation) && {
                kept.push(*operation);
                true
            }
        });
        steps.sort_unstable();
        steps.dedup();
        Self { operations, steps }
    }
}

/// Every sequence of `depth` operations, at most 4, under `policy`. The first finds an empty log, so that its time does
/// not matter.
pub(super) fn sequences(policy: &Policy, depth: usize) -> impl Iterator<Item = Case> + Send {
    let Alphabet { operations, steps } = Alphabet::of(policy);
    let (policies, depth) = (vec![policy.clone()], depth.min(4));
    let firsts: Vec<Step> = operations.iter().map(|&operation| Step { after: 0, operation }).collect();
    let later: Vec<Step> =
        steps.iter().flat_map(|&after| operations.iter().map(move |&operation| Step { after, operation })).collect();
    let count = if depth == 0 { 0 } else { firsts.len() * later.len().pow(depth as u32 - 1) };
    (0..count).map(move |number| {
        let mut rest = number;
        let mut steps = vec![firsts[rest % firsts.len()]];
        rest /= firsts.len();
        for _ in 1..depth {
            steps.push(later[rest % later.len()]);
            rest /= later.len();
        }
        Case { policies: policies.clone(), limiters: vec![CaseLimiter::NONE], start: START, steps }
    })
}
