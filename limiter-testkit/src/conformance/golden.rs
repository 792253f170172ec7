//! The golden traces. A test of this crate compares the reference store with every field of them.

use limiter_core::Policy;

use super::sequence::Plan;
use super::sequence::case::{Case, CaseLimiter, Operation, Place, Step};
use super::suite::failure::Finding;
use super::suite::run::Run;
use crate::golden::{self, Trace};

pub(crate) async fn run(run: &mut Run<'_>) {
    for (number, trace) in golden::traces().iter().enumerate() {
        let title = format!("golden trace \"{}\"", trace.name);
        let plan = case(trace).map_err(|error| error.to_string()).and_then(|case| Plan::of(&case));
        let result = match plan {
            Ok(plan) => run.replay(&plan, number).await.map_err(|mismatch| Finding::of(title, mismatch)),
            Err(text) => Err(Finding::new(title, &[], text)),
        };
        match result {
            Ok(()) => run.passed(trace.rows.len() as u64),
            Err(finding) => run.fail(finding),
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
        let on = Place { limiter: row.limiter as u8, key: 0 };
        let operation = Operation::Run { mode: row.mode, on, policy, cost: row.cost, id: None, keep: false };
        steps.push(Step { after: row.at as i64 - before, operation });
        before = row.at as i64;
    }
    let limiters = [0, 1].map(|name| CaseLimiter { name, policy: Some(0) }).to_vec();
    Ok(Case { policies, limiters, start: 0, steps })
}
