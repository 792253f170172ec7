//! The golden traces.

use limiter_core::Error;

use super::case::{Case, CaseId, CaseLimiter, Place, Step, Verb};
use super::mismatch::Mismatch;
use super::session::Session;
use super::suite::run::Run;
use crate::golden::{self, Trace};

pub(crate) async fn run(run: &mut Run<'_>) {
    for (number, trace) in golden::traces().iter().enumerate() {
        let title = format!("golden trace \"{}\"", trace.name);
        let result = match case(trace) {
            Ok(case) => Session::new(run, &case, number).replay(&case).await,
            Err(error) => Err(Mismatch::new("", &[], error.to_string())),
        };
        run.count_script(result.map_err(|mismatch| mismatch.titled(title)));
    }
}

/// Returns the trace as a case with one step per row, in order.
fn case(trace: &Trace) -> Result<Case, Error> {
    let limiter = |name| CaseLimiter {
        name,
        policy: Some(0),
    };
    let mut case = Case {
        policies: vec![trace.policy()?],
        limiters: vec![limiter(0), limiter(1)],
        ..Case::default()
    };
    let mut before = 0;
    for row in trace.rows {
        let mut step = Step::new(Verb::Run(row.mode), row.cost);
        if let Some(own) = row.own_policy()? {
            step.policy = case.policies.len() as u8;
            case.policies.push(own);
        }
        step.verb = row.renews.map_or(step.verb, Verb::Renew);
        step.id = row.id.map(CaseId::Fresh);
        let limiter = row.limiter as u8;
        step.on = Some(Place { limiter, key: 0 });
        step.after = row.at as i64 - before;
        before = row.at as i64;
        case.steps.push(step);
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use limiter_core::LimitStatus;

    use super::*;
    use crate::conformance::result::CallResult;
    use crate::conformance::session::planned;
    use crate::golden::{RowAnswer, traces};

    #[test]
    fn the_reference_store_agrees_with_every_field() {
        let mut rows = 0;
        for trace in traces() {
            let calls = planned(&case(trace).unwrap()).calls;
            for (row, planned) in trace.rows.iter().zip(&calls) {
                let mut expected = (None, row.used_each.to_vec());
                if let CallResult::Decided(decided) = &planned.expected {
                    let limits = decided.answer.status.limits();
                    let used = limits.iter().map(LimitStatus::used);
                    expected = (Some(RowAnswer::from(&decided.answer)), used.collect());
                }
                if let CallResult::Settled(settled) = &planned.expected {
                    let answer = RowAnswer::new(settled.changed.is_some(), None, &settled.status);
                    expected.0 = Some(answer);
                }
                if row.used_each.is_empty() {
                    expected.1.clear();
                }
                let stated = (row.answer, row.used_each.to_vec());
                assert_eq!(stated, expected, "{}: {row:?}", trace.name);
                rows += 1;
            }
        }
        assert_eq!((traces().len(), rows), (18, 159));
    }
}
