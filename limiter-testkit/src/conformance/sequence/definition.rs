//! Computes the fields of decisions from their definitions alone, and compares the expected results with them.

use std::time::Duration;

use limiter_core::store::{LogKey, Mode};
use limiter_core::{Limit, MAX_COST, Policy, Status, Timestamp};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::Planned;
use super::call_result::CallResult;
use super::planner::Planner;
use crate::conformance::generated::exhaustive;
use crate::conformance::session::planned;
use crate::conformance::{cases, script};
use crate::reference::ReferenceEntry;

/// A log at one time.
struct LogAt<'a> {
    log: &'a [ReferenceEntry],
    limits: &'a [Limit],
    now: u64,
    /// `now`, and every later instant at which an entry leaves a window. No window holds an entry at the last one.
    instants: Vec<u64>,
}

impl<'a> LogAt<'a> {
    fn new(log: &'a [ReferenceEntry], limits: &'a [Limit], now: Timestamp) -> Self {
        let now = now.as_micros();
        let leaving = log.iter().flat_map(|entry| {
            limits
                .iter()
                .map(|l| entry.at.as_micros() + l.window().as_micros())
        });
        let mut instants: Vec<u64> = leaving.chain([now]).filter(|&t| t >= now).collect();
        instants.sort_unstable();
        Self {
            log,
            limits,
            now,
            instants,
        }
    }

    fn used(&self, limit: &Limit, t: u64) -> u64 {
        let counts =
            |entry: &&ReferenceEntry| t - entry.at.as_micros() < limit.window().as_micros();
        self.log
            .iter()
            .filter(counts)
            .map(|entry| entry.cost)
            .fold(0, u64::saturating_add)
    }

    fn remaining(&self, limit: &Limit, t: u64) -> u64 {
        limit.max().saturating_sub(self.used(limit, t))
    }

    /// Returns how long it takes until `holds` returns `true`.
    fn until(&self, holds: impl Fn(u64) -> bool) -> Duration {
        let first = self.instants.iter().find(|&&t| holds(t));
        Duration::from_micros(first.map_or(u64::MAX, |t| t - self.now))
    }

    /// Checks every field of a status. In a denial, each limit denies the operation for some time.
    fn check(&self, status: &Status, denial: Option<&[Duration]>) {
        for (i, (limit, status)) in self.limits.iter().zip(status.limits().iter()).enumerate() {
            let (used, remaining) = (self.used(limit, self.now), self.remaining(limit, self.now));
            let gains = |t: u64| used == 0 || self.remaining(limit, t) > remaining;
            assert_eq!(status.limit(), *limit);
            assert_eq!(
                (status.used(), status.remaining()),
                (used.min(limit.max()), remaining)
            );
            assert_eq!(
                status.retry_after().unwrap_or_default(),
                denial.map_or(Duration::ZERO, |waits| waits[i])
            );
            assert_eq!(status.refill_after(), self.until(gains));
            assert_eq!(
                status.reset_after(),
                self.until(|t| self.used(limit, t) == 0)
            );
        }
        assert_eq!(status.limits().len(), self.limits.len());
        assert_eq!(
            status.reset_after(),
            self.until(|t| self.limits.iter().all(|limit| self.used(limit, t) == 0))
        );
        let order = |i: &usize| match denial {
            Some(waits) => u64::MAX - waits[*i].as_micros() as u64,
            None => self.remaining(&self.limits[*i], self.now),
        };
        // Returns the first of equals.
        let binding = (0..self.limits.len()).min_by_key(order).unwrap();
        let [of_it, of_all] = [
            status.limits()[binding],
            status.limits()[status.binding_index()],
        ];
        assert_eq!(
            (status.binding_index(), status.limit()),
            (binding, of_it.limit())
        );
        assert_eq!((of_all.used(), status.used()), (of_it.used(), of_it.used()));
        assert_eq!(
            (status.remaining(), status.refill_after()),
            (of_it.remaining(), of_it.refill_after())
        );
    }
}

/// Checks every field of the result of a call that the planner has just applied.
fn check(planner: &Planner, planned: &Planned) {
    let (Planned { call, expected, .. }, policies) = (planned, &planner.plan.policies);
    let (log, limits) = (
        &planner.entries(call.log)[..],
        policies[call.policy].limits(),
    );
    let decided = match expected {
        CallResult::Decided(decided) => decided,
        CallResult::Settled(settled) => {
            return LogAt::new(log, limits, settled.status.at()).check(&settled.status, None);
        }
        _ => return,
    };
    let answer = &decided.answer;
    let log_at = LogAt::new(log, limits, answer.status.at());
    let op = call
        .op(
            policies,
            LogKey::new(call.log.name(), b""),
            Planner::SALT,
            |step| planner.entry(step),
        )
        .unwrap();
    let cost = op.cost.min(MAX_COST);
    let fits = |limit: &Limit, t: u64| log_at.used(limit, t).saturating_add(cost) <= limit.max();
    let is_denial = !answer.allowed && op.mode != Mode::Record;
    let waits: Vec<Duration> = limits
        .iter()
        .map(|limit| log_at.until(|t| fits(limit, t)))
        .collect();
    log_at.check(&answer.status, is_denial.then_some(&waits));
    // A repeated denial may fit by now.
    let least = Duration::from_micros(1);
    let retry_after = is_denial.then(|| {
        log_at
            .until(|t| limits.iter().all(|limit| fits(limit, t)))
            .max(least)
    });
    assert_eq!(answer.retry_after, retry_after);

    let policies = [Some(op.policy), op.limiter_policy].into_iter().flatten();
    let all: Vec<&Limit> = policies.flat_map(Policy::limits).collect();
    let exact = all.iter().filter(|limit| limit.resolution().is_none());
    let window = exact.map(|limit| limit.window()).max();
    let entry = match decided.raw_facts.unwrap().outcome {
        "Appended" => log.last(),
        "Repeated" => log.iter().find(|entry| entry.id == op.id),
        _ => None,
    };
    assert_eq!(answer.appended, entry.is_some());
    let receipt = entry
        .filter(|entry| entry.refundable)
        .and_then(|entry| Some((entry.at, window?)));
    assert_eq!(answer.receipt, receipt);
}

#[test]
fn expected_results_have_the_fields_that_are_defined() {
    let mut runner = TestRunner::deterministic();
    let mut random = |steps| cases(steps).new_tree(&mut runner).unwrap().current();
    let random: Vec<_> = (0..4_000)
        .map(|i| random(if i % 40 == 0 { 60..=200 } else { 1..=30 }))
        .collect();
    let policies = exhaustive::policies();
    let sequences = policies
        .iter()
        .flat_map(|policy| exhaustive::sequences(policy, 2));
    let scripts = script::parse(script::GIVEN_TIMES)
        .unwrap()
        .into_iter()
        .map(|script| script.case);
    for case in random.into_iter().chain(sequences).chain(scripts) {
        let mut planner = Planner::new(&case);
        for call in &planned(&case).calls {
            planner.expect(call.step, call.call);
            check(&planner, call);
        }
    }
}
