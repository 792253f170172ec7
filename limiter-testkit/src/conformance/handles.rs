//! Several handles of one store.

use limiter_core::WindowStore;

use crate::conformance::cases::script::finding;
use crate::conformance::cases::scripts;
use crate::conformance::contention;
use crate::conformance::own_clock::time_scale::{TimeScale, replay_script};
use crate::conformance::sentence::Sentence::L12;
use crate::conformance::sequence::Plan;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    if run.handles().len() < 2 {
        return;
    }
    in_turn(run, findings).await;
    at_the_stores_clock(run, findings).await;
    let handles = run.handles().to_vec();
    for _ in 0..run.sizes().rounds {
        if findings.is_empty() {
            contention::at_once(run, &handles, findings).await;
        }
    }
}

/// Runs the handwritten cases, each call through the next handle. Each handle must notice what the others changed.
async fn in_turn<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    for (number, script) in scripts().into_iter().enumerate() {
        for first in 0..run.sizes().rounds_of_cases.min(2) {
            let plan = match Plan::of(&script.case) {
                Ok(plan) => plan,
                Err(text) => return findings.push(Finding::new(script.name, &[], text)),
            };
            match run.replay_through(run.handles().len(), &plan, number + first, None).await {
                Ok(()) => run.report.cases += 1,
                Err(mismatch) => {
                    let mut finding = finding(&script, &plan, mismatch);
                    finding.title += &format!(", through {} handles in turn", run.handles().len());
                    finding.citations.insert(0, L12.nth(2));
                    findings.push(finding);
                }
            }
        }
    }
}

async fn at_the_stores_clock<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    for (turn, script) in scripts().into_iter().enumerate() {
        match replay_script(run, run.handles(), &script, TimeScale::Standstill, turn).await {
            Ok(calls) => {
                run.count(calls);
                run.report.cases += 1;
            }
            Err(mut finding) => {
                run.count(1);
                finding.title += &format!(", through {} handles in turn", run.handles().len());
                finding.citations.insert(0, L12.nth(2));
                findings.push(finding);
            }
        }
    }
}
