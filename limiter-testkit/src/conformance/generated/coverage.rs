//! Checks that random sequences contain every kind of call. A kind that is never generated is never tested.

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, ErrorKind, MAX_COST};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::conformance::sequence::call_result::CallResult;
use crate::conformance::sequence::case::Operation;
use crate::conformance::sequence::{Call, Plan, Planned};
use crate::conformance::session::planned;
use crate::conformance::strategy::cases;

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let (mut kinds, mut latest) = (Vec::new(), 0);
    for Planned { call, expected, .. } in plan.calls.iter().map(AsRef::as_ref) {
        let mut note = |is_kind: bool, kind| kinds.extend(is_kind.then_some(kind));
        let Call {
            policy,
            limiter_policy,
            at,
            log,
            ..
        } = call;
        match (&call.operation, expected) {
            (Operation::Run { mode, id, cost, .. }, CallResult::Decided(decided)) => {
                let (answer, policy_of_call) = (&decided.answer, &plan.policies[*policy]);
                let is_attempts = policy_of_call.counting() == Counting::Attempts;
                let has_resolution = |policy: usize| plan.policies[policy].has_resolution();
                let default = limiter_policy.filter(|default| default != policy);
                note(policy_of_call.lease().is_some(), "a lease");
                note(has_resolution(*policy), "a resolution");
                note(
                    !has_resolution(*policy) && default.is_some_and(has_resolution),
                    "a resolution of the limiter's",
                );
                note(
                    has_resolution(*policy) && default.is_some_and(has_resolution),
                    "two policies with resolutions",
                );
                let exact = |policy: usize| plan.policies[policy].longest_exact_window();
                let lives = exact(*policy).max(limiter_policy.and_then(exact));
                let policies = [Some(*policy), *limiter_policy].into_iter().flatten();
                let kept = policies
                    .map(|policy| plan.policies[policy].longest_window())
                    .max();
                note(answer.appended && lives.is_none(), "without a receipt");
                note(
                    answer.receipt.is_some() && lives < kept,
                    "a receipt that ends early",
                );
                let windows: Vec<u64> = plan
                    .policies
                    .iter()
                    .take(plan.policies.len() - 1)
                    .flat_map(limiter_core::Policy::limits)
                    .map(|limit| limit.window().as_micros())
                    .collect();
                note(
                    windows.iter().any(|w| windows.contains(&(w + 1))),
                    "neighbouring windows",
                );
                let is_final = answer.appended && lives.is_some() && answer.receipt.is_none();
                note(is_final && answer.allowed, "above the limiter's policy");
                note(log.name > 0, "another limiter");
                note(
                    limiter_policy.is_some_and(|default| default != *policy),
                    "not the default policy",
                );
                note(at.as_micros() < latest, "steps back");
                note(*at < answer.status.at(), "clamped");
                let is_later = answer
                    .receipt
                    .is_some_and(|(appended, _)| appended < answer.status.at());
                note(id.is_some() && is_later, "repeated later");
                note(
                    answer.retry_after == Some(Duration::from_micros(1)),
                    "one microsecond early",
                );
                note(answer.status.binding_index() > 0, "a later limit binds");
                let is_whole = answer
                    .status
                    .limits()
                    .iter()
                    .any(|limit| limit.limit().max() == *cost);
                note(answer.allowed && is_whole, "the whole maximum");
                latest = at.as_micros();
                let kind = match (mode, answer.allowed) {
                    (Mode::Acquire, true) => "admitted",
                    (Mode::Acquire, false) if is_attempts => "denied attempt",
                    (Mode::Acquire, false) => "denied",
                    (Mode::Peek, true) => "peek",
                    (Mode::Peek, false) => "peek at a full log",
                    (Mode::Record, _) if *cost > MAX_COST => "saturating record",
                    (Mode::Record, true) => "record",
                    (Mode::Record, false) => "record over the maximum",
                };
                note(true, kind);
            }
            (_, CallResult::Failed(ErrorKind::InvalidCost, _)) => note(true, "cost of 0"),
            (_, CallResult::Failed(ErrorKind::NeedsExactLimit, _)) => {
                note(true, "an id that needs an exact limit");
            }
            (_, CallResult::Failed(..)) => note(true, "cost above the maximum"),
            (Operation::Settle { cost, .. }, CallResult::Settled(settled)) => {
                note(
                    true,
                    match (cost, settled.applied) {
                        (0, true) => "refund",
                        (0, false) => "stale refund",
                        (_, true) => "settlement",
                        (_, false) => "stale settlement",
                    },
                );
            }
            (_, CallResult::Reset(done)) => {
                note(true, if *done { "reset" } else { "reset of nothing" });
            }
            (call, expected) => panic!("{call:?} expects {expected:?}"),
        }
    }
    kinds
}

#[test]
fn random_sequences_reach_every_kind_of_call() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..1_000 {
        let case = cases(1..=30).new_tree(&mut runner).unwrap().current();
        for kind in kinds(&planned(&case)) {
            *counts.entry(kind).or_insert(0_u32) += 1;
        }
    }
    assert_eq!(counts.len(), 33, "{counts:#?}");
    assert!(counts.values().all(|&count| count >= 40), "{counts:#?}");
}
