//! The store's own clock.

mod given_times;
mod short_windows;
mod waiting;

use futures::future::join_all;
use limiter_core::WindowStore;

use crate::conformance::cases::scripts::scripts;
use crate::conformance::own_clock::pace::{Pace, put};
use crate::conformance::suite::failure::Findings;
use crate::conformance::suite::run::Run;

/// How many cases run at once: they mostly sleep.
const AT_ONCE: usize = 32;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    waiting::run(run, findings).await;
    given_times::run(run, findings).await;
    cases(run, findings, Pace::Standing).await;
    if findings.is_empty() {
        cases(run, findings, Pace::Running).await;
        short_windows::run(run, findings).await;
    }
}

/// The cases written by hand, at the pace of the store's clock.
async fn cases<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings, pace: Pace) {
    let (handles, tolerance) = (run.handles()[..1].to_vec(), run.tolerance());
    for (number, batch) in scripts().chunks(AT_ONCE).enumerate() {
        let turn = number + usize::from(pace == Pace::Running);
        let cases = batch.iter().map(|script| put(&handles, script, pace, (run.new_key(), turn), tolerance));
        for result in join_all(cases).await {
            match result {
                Ok(calls) => {
                    run.count(calls);
                    run.report.cases += u64::from(calls > 0);
                }
                Err(finding) => {
                    run.count(1);
                    findings.push(finding);
                }
            }
        }
    }
}
