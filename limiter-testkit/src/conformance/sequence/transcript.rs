//! Prints a plan's calls, with the expected and actual results side by side.

use std::fmt::Write;

use super::call_result::CallResult;
use super::case::{Operation, describe};
use super::{Call, Log, Plan, Planned};
use crate::answer::fields::{Fields, since};

impl Plan {
    fn policy(&self, policy: usize) -> String {
        let is_last = policy + 1 == self.policies.len();
        if is_last {
            "everything".to_owned()
        } else {
            self.policies.get(policy).map(describe).unwrap_or_default()
        }
    }

    fn log(&self, log: Log) -> String {
        let mut text = String::new();
        if log.key > 0
            || self
                .calls
                .iter()
                .any(|planned| planned.call.log.key != log.key)
        {
            _ = write!(text, " on key {}", log.key);
        }
        if log.name > 0
            || self
                .calls
                .iter()
                .any(|planned| planned.call.log.name != log.name)
        {
            _ = write!(text, " of limiter {}", log.name);
        }
        text
    }

    /// Describes a call.
    pub(crate) fn describe(&self, call: &Call) -> String {
        let (on, policy) = (self.log(call.log), self.policy(call.policy));
        match call.operation {
            Operation::Run { mode, cost, id, .. } => {
                let verb = format!("{mode:?}").to_lowercase();
                let id = id.map_or_else(String::new, |id| format!(" with id {id}"));
                let default = call
                    .limiter_policy
                    .filter(|default| *default != call.policy);
                let default = default
                    .map(|default| format!(" (the limiter's policy is {})", self.policy(default)));
                format!(
                    "{verb} {cost}{on}{id} under {policy}{}",
                    default.unwrap_or_default()
                )
            }
            Operation::Settle { step, cost, .. } => {
                let what = if cost == 0 {
                    "refund".to_owned()
                } else {
                    format!("settle to {cost}")
                };
                let issuer = self
                    .calls
                    .iter()
                    .find(|planned| planned.step == step)
                    .map(|planned| planned.call.log);
                let elsewhere = issuer
                    .filter(|issuer| *issuer != call.log)
                    .map(|_| ", issued by another log,");
                format!(
                    "{what} the entry of step {step}{}{on} by {policy}",
                    elsewhere.unwrap_or("")
                )
            }
            Operation::Reset { .. } => format!("reset{on}"),
        }
    }

    fn line(&self, number: usize, mark: &str) -> String {
        let Planned { call, step, .. } = &*self.calls[number];
        format!(
            "{mark:1} {step:>3}. {:>6}  {}",
            since(self.start, call.at),
            self.describe(call)
        )
    }
}

/// The maximum number of calls printed before the wrong one.
const MAX_CALLS_SHOWN: usize = 60;

/// Prints all calls of `plan` with their expected results.
pub(crate) fn of_calls(plan: &Plan) -> String {
    before(plan, plan.calls.len())
}

fn before(plan: &Plan, end: usize) -> String {
    let mut text = format!("times in \u{b5}s since {}\n", plan.start.as_micros());
    let start = end.saturating_sub(MAX_CALLS_SHOWN);
    if start > 0 {
        let _ = writeln!(text, "  ... {start} calls");
    }
    for number in start..end {
        let _ = writeln!(
            text,
            "{}: {}",
            plan.line(number, ""),
            plan.calls[number].expected
        );
    }
    text
}

/// Prints the calls of `plan`, then the expected and the actual result of the last one side by side.
pub(crate) fn of_last(plan: &Plan, got: &CallResult) -> String {
    let last = plan.calls.len().saturating_sub(1);
    let expected = plan
        .calls
        .get(last)
        .map(|planned| planned.expected.fields(plan.start))
        .unwrap_or_default();
    format!(
        "{}{}\n{}",
        before(plan, last),
        plan.line(last, ">"),
        columns(&expected, &got.fields(plan.start))
    )
}

/// Prints two lists of fields side by side. A field missing from `got` was not returned by the store.
pub(crate) fn columns(expected: &Fields, got: &Fields) -> String {
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let names = width(
        &mut expected
            .iter()
            .chain(got)
            .map(|(name, _)| name.chars().count()),
    );
    let values =
        width(&mut expected.iter().map(|(_, value)| value.chars().count())).max("expected".len());
    let mut text = format!("  {:names$}  {:values$}  {}\n", "", "expected", "got");
    for (name, value) in expected {
        let found = got
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.as_str());
        let mark = if found.is_some_and(|found| found != value) {
            "  <--"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "  {name:names$}  {value:values$}  {}{mark}",
            found.unwrap_or("-")
        );
    }
    for (name, value) in got
        .iter()
        .filter(|(name, _)| !expected.iter().any(|(other, _)| other == name))
    {
        let _ = writeln!(text, "  {name:names$}  {:values$}  {value}  <--", "-");
    }
    text
}
