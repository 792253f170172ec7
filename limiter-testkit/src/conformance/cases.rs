//! Cases written by hand, at given times: at least one for every sentence of the contract that a sequence of calls can break.

mod appends;
mod at_once;
mod edges;
mod fits;
mod ids;
mod keys;
mod policies;
mod retention;
pub(super) mod script;
pub(super) mod scripts;
mod settlements;
mod settling;
mod times;

use limiter_core::WindowStore;

use crate::conformance::sequence::plan::Plan;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;
use script::finding;
use scripts::scripts;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    at_once::run(run, findings).await;
    for round in (0..3).rev().take(run.sizes().rounds_of_cases) {
        for script in scripts() {
            let planned = match round {
                // Last in order, first to run: a look after every step says which step goes wrong.
                2 => Plan::watched(&script.case),
                1 => Plan::of(&script.case),
                _ => Plan::of(&script.clone().counting_otherwise().case),
            };
            let result = match planned {
                Ok(plan) => run.replay(&plan, round).await.map_err(|mismatch| finding(&script, &plan, mismatch)),
                Err(text) => Err(Finding::new(script.name, &[], text)),
            };
            match result {
                Ok(()) => run.report.cases += 1,
                Err(finding) => findings.push(finding),
            }
        }
        if !findings.is_empty() {
            break;
        }
    }
    keys::run(run, findings).await;
}
