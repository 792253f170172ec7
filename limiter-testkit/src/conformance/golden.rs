//! The golden traces.

use limiter_core::Policy;

use super::sequence::case::{Case, CaseLimiter, Operation, Place, Step};
use super::sequence::mismatch::Mismatch;
use super::session::Session;
use super::suite::run::Run;
use crate::golden::{self, Trace};

pub(crate) async fn run(run: &mut Run<'_>) {
    for (number, trace) in golden::traces().iter().enumerate() {
        let title = format!("golden trace \"{}\"", trace.name);
        let result = match case(trace) {
            Ok(case) => Session::new(run, &case, number)
                .replay(&case)
                .await
                .map_err(|mismatch| mismatch.titled(title)),
            Err(error) => Err(Mismatch::new(title, &[], error.to_string())),
        };
        match result {
            Ok(calls) => {
                run.count(calls);
                run.passed(trace.rows.len() as u64);
            }
            Err(mismatch) => run.fail(mismatch),
        }
    }
}

/// Returns the trace as a case with one step per row, in order.
fn case(trace: &Trace) -> Result<Case, limiter_core::Error> {
    let mut policies: Vec<Policy> = vec![trace.policy()?];
    let (mut steps, mut before) = (Vec::new(), 0);
    for row in trace.rows {
        let mut policy = 0;
        if let Some(own) = row.own_policy()? {
            policy = policies.len() as u8;
            policies.push(own);
        }
        let on = Place {
            limiter: row.limiter as u8,
            key: 0,
        };
        let operation = Operation::Run {
            mode: row.mode,
            on,
            policy,
            cost: row.cost,
            id: None,
        };
        steps.push(Step {
            after: row.at as i64 - before,
            operation,
        });
        before = row.at as i64;
    }
    let limiters = [0, 1]
        .map(|name| CaseLimiter {
            name,
            policy: Some(0),
        })
        .to_vec();
    Ok(Case {
        policies,
        limiters,
        start: 0,
        steps,
    })
}

#[cfg(test)]
mod tests {
    use limiter_core::LimitStatus;

    use super::*;
    use crate::conformance::sequence::call_result::CallResult;
    use crate::conformance::session::planned;
    use crate::golden::{RowAnswer, traces};

    #[test]
    fn the_reference_store_agrees_with_every_field() {
        let mut rows = 0;
        for trace in traces() {
            let plan = planned(&case(trace).unwrap());
            for (row, planned) in trace.rows.iter().zip(&plan.calls) {
                let CallResult::Decided(decided) = &planned.expected else {
                    assert_eq!(row.answer, None, "{}: {row:?}", trace.name);
                    continue;
                };
                let used: Vec<u64> = decided
                    .answer
                    .status
                    .limits()
                    .iter()
                    .map(LimitStatus::used)
                    .collect();
                assert!(
                    row.used_each.is_empty() || *used == *row.used_each,
                    "{}: {row:?}",
                    trace.name
                );
                assert_eq!(
                    row.answer,
                    Some(RowAnswer::from(&decided.answer)),
                    "{}: {row:?}",
                    trace.name
                );
                rows += 1;
            }
        }
        assert_eq!((traces().len(), rows), (16, 143));
    }
}
