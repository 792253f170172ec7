//! Every short sequence.

use limiter_core::Policy;
use limiter_core::store::Mode;

use crate::conformance::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use crate::conformance::strategy::{START, limit, policy, resolved};

/// The policies that every short sequence runs under.
pub(crate) fn policies() -> Vec<Policy> {
    let (one, two, three) = (limit(1, 1), limit(2, 10), limit(3, 10));
    vec![
        policy(&[one], false),
        policy(&[three], false),
        policy(&[three], true),
        policy(&[two, limit(3, 11)], false),
        policy(&[limit(4, 10), limit(3, 9)], true),
        policy(&[resolved(three, 10)], false),
        policy(&[limit(3, 9), resolved(limit(4, 20), 10)], false),
    ]
}

/// Returns the operations of a short sequence, and the time steps before each operation.
fn choices(policy: &Policy) -> (Vec<Operation>, Vec<i64>) {
    let (max, window) = (
        policy.smallest_max(),
        policy.longest_window().as_micros() as i64,
    );
    let run = |mode, cost, id| Operation::Run {
        mode,
        on: Place::default(),
        policy: 0,
        cost,
        id,
    };
    let settle = |step, cost| Operation::Settle {
        step,
        on: None,
        cost,
        policy: 0,
    };
    let mut operations = vec![
        run(Mode::Acquire, 1, None),
        run(Mode::Acquire, 2, None),
        run(Mode::Acquire, max, None),
        run(Mode::Acquire, max + 1, None),
        run(Mode::Acquire, 1, Some(CaseId::Fresh(7))),
        run(Mode::Record, 1, None),
        run(Mode::Record, max + 1, None),
        run(Mode::Peek, max, None),
        settle(0, 0),
        settle(0, 2),
        settle(1, 0),
        Operation::Reset {
            on: Place::default(),
        },
    ];
    // The maximum may be 1 or 2.
    let mut seen = Vec::new();
    operations.retain(|operation| {
        let is_new = !seen.contains(operation);
        seen.push(*operation);
        is_new
    });
    let mut steps = vec![0, 1, window - 1, window, window + 1, -1];
    steps.sort_unstable();
    steps.dedup();
    (operations, steps)
}

/// Returns every sequence of `depth` operations, at most 4, under `policy`. The first operation finds an empty log,
/// so its time is irrelevant and it never settles.
pub(crate) fn sequences(policy: &Policy, depth: usize) -> impl Iterator<Item = Case> + Send {
    let (operations, steps) = choices(policy);
    let (policies, depth) = (vec![policy.clone()], depth.min(4));
    let can_be_first = |operation: &&Operation| !matches!(operation, Operation::Settle { .. });
    let firsts: Vec<Step> = operations
        .iter()
        .filter(can_be_first)
        .map(|&operation| Step {
            after: 0,
            operation,
        })
        .collect();
    // From the third step on, the receipt of the second step can be settled.
    let is_possible = |operation: &&Operation| {
        depth > 2 || !matches!(operation, Operation::Settle { step: 1, .. })
    };
    let operations: Vec<Operation> = operations.iter().filter(is_possible).copied().collect();
    let later: Vec<Step> = steps
        .iter()
        .flat_map(|&after| {
            operations
                .iter()
                .map(move |&operation| Step { after, operation })
        })
        .collect();
    let count = if depth == 0 {
        0
    } else {
        firsts.len() * later.len().pow(depth as u32 - 1)
    };
    (0..count).map(move |number| {
        let mut rest = number;
        let mut steps = vec![firsts[rest % firsts.len()]];
        rest /= firsts.len();
        for _ in 1..depth {
            steps.push(later[rest % later.len()]);
            rest /= later.len();
        }
        Case {
            policies: policies.clone(),
            limiters: vec![CaseLimiter::NONE],
            start: START,
            steps,
        }
    })
}
