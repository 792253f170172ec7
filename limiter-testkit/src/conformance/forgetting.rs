//! Checks logs shortly before the store may forget them, and afterwards.

mod other_keys;
mod timelines;

use limiter_core::WindowStore;

use crate::conformance::cases::script::finding;
use crate::conformance::cases::scripts;
use crate::conformance::sentence::Sentence::F2;
use crate::conformance::sequence::Plan;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    swept(run, findings).await;
    other_keys::run(run, findings).await;
    timelines::run(run, findings).await;
}

/// Runs the handwritten cases with a sweep before every call. Their times are given, so F2 protects every log.
async fn swept<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let Some(sweep) = run.sweep() else { return };
    for script in scripts() {
        let plan = match Plan::of(&script.case) {
            Ok(plan) => plan,
            Err(text) => return findings.push(Finding::new(script.name, &[], text)),
        };
        match run.replay_through(1, &plan, 1, Some(sweep)).await {
            Ok(()) => run.report.cases += 1,
            Err(mismatch) => {
                let mut finding = finding(&script, &plan, mismatch);
                finding.title += ", with a sweep before every call";
                finding.citations.insert(0, F2.nth(1));
                findings.push(finding);
            }
        }
    }
}
