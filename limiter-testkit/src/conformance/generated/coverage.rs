//! Checks that random sequences contain every kind of call. A kind that is never generated is never tested.

use std::collections::BTreeMap;

use limiter_core::store::Mode;
use limiter_core::{Counting, ErrorKind, MAX_COST};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::strategy::cases;
use crate::conformance::sequence::call_result::CallResult;
use crate::conformance::sequence::{Call, Plan, Planned};

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    let mut latest = 0;
    for Planned { call, expected, .. } in &plan.calls {
        let kind = match (call, expected) {
            (Call::Run { mode, policy, limiter_policy, at, id, cost, log }, CallResult::Decided(decided)) => {
                let answer = &decided.answer;
                if log.name > 0 {
                    kinds.push("another limiter");
                }
                if limiter_policy.is_some_and(|default| default != *policy) {
                    kinds.push("not the default policy");
                }
                let policy = &plan.policies[*policy];
                if at.as_micros() < latest {
                    kinds.push("steps back");
                }
                if *at < answer.status.at {
                    kinds.push("clamped");
                }
                if id.is_some() && answer.receipt.is_some_and(|(appended, _)| appended < answer.status.at) {
                    kinds.push("repeated later");
                }
                if answer.retry_after == Some(1) {
                    kinds.push("one microsecond early");
                }
                if answer.binding > 0 {
                    kinds.push("a later limit binds");
                }
                if answer.allowed && answer.status.limits.iter().any(|limit| limit.limit.max() == *cost) {
                    kinds.push("the whole maximum");
                }
                latest = at.as_micros();
                match (mode, answer.allowed, policy.counting()) {
                    (Mode::Acquire, true, _) => "admitted",
                    (Mode::Acquire, false, Counting::Attempts) => "denied attempt",
                    (Mode::Acquire, false, _) => "denied",
                    (Mode::Peek, allowed, _) => {
                        if allowed {
                            "peek"
                        } else {
                            "peek at a full log"
                        }
                    }
                    (Mode::Record, ..) if *cost > MAX_COST => "saturating record",
                    (Mode::Record, allowed, _) => {
                        if allowed {
                            "record"
                        } else {
                            "record over the maximum"
                        }
                    }
                }
            }
            (_, CallResult::Refused(ErrorKind::InvalidCost)) => "cost of 0",
            (_, CallResult::Refused(_)) => "cost above the maximum",
            (Call::Settle { cost: 0, .. }, CallResult::Settled(settled)) => {
                if settled.applied {
                    "refund"
                } else {
                    "stale refund"
                }
            }
            (Call::Settle { .. }, CallResult::Settled(settled)) => {
                if settled.applied {
                    "settlement"
                } else {
                    "stale settlement"
                }
            }
            (_, CallResult::Reset(done)) => {
                if *done {
                    "reset"
                } else {
                    "reset of nothing"
                }
            }
            (_, CallResult::Decided(_) | CallResult::Settled(_)) => "an answer of the wrong kind",
        };
        kinds.push(kind);
    }
    kinds
}

#[test]
fn random_sequences_reach_every_kind_of_call() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..1_000 {
        let case = cases(1..=30).new_tree(&mut runner).unwrap().current();
        for kind in kinds(&Plan::of(&case).unwrap()) {
            *counts.entry(kind).or_insert(0_u32) += 1;
        }
    }
    println!("{counts:#?}");
    let expected = [
        "a later limit binds",
        "admitted",
        "another limiter",
        "clamped",
        "cost above the maximum",
        "cost of 0",
        "denied",
        "denied attempt",
        "not the default policy",
        "one microsecond early",
        "peek",
        "peek at a full log",
        "record",
        "record over the maximum",
        "refund",
        "repeated later",
        "reset",
        "reset of nothing",
        "saturating record",
        "settlement",
        "stale refund",
        "stale settlement",
        "steps back",
        "the whole maximum",
    ];
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), expected);
    assert!(counts.values().all(|&count| count >= 40), "{counts:#?}");
}
