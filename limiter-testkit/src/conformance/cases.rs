//! Handwritten cases at given times. At least one covers each sentence of the contract that a sequence of calls can
//! break.

mod appends;
mod at_once;
mod edges;
mod fits;
mod ids;
mod keys;
mod policies;
mod retention;
pub(super) mod script;
mod settlements;
mod settling;
mod times;

use limiter_core::WindowStore;

use crate::conformance::sequence::Plan;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;
use script::{Script, finding};

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    at_once::run(run, findings).await;
    for round in (0..3).rev().take(run.sizes().rounds_of_cases) {
        for script in scripts() {
            let planned = match round {
                // Run this one first: it reads the log after every step, so a failure names the step that went wrong.
                2 => Plan::with_peeks(&script.case),
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

/// Returns the scripts of all cases.
pub(crate) fn scripts() -> Vec<Script> {
    [
        times::scripts(),
        fits::scripts(),
        appends::scripts(),
        retention::scripts(),
        policies::scripts(),
        ids::scripts(),
        settlements::scripts(),
        settling::scripts(),
        edges::scripts(),
    ]
    .concat()
}
