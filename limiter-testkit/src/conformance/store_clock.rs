//! Cases at the store's clock.

mod given_times;
mod short_windows;
mod waiting;

use futures::future::join_all;
use limiter_core::WindowStore;

use crate::conformance::cases::scripts;
use crate::conformance::own_clock::time_scale::{TimeScale, replay_script};
use crate::conformance::suite::failure::Findings;
use crate::conformance::suite::run::Run;

/// The number of concurrent cases. They spend most of their time asleep.
const AT_ONCE: usize = 32;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    waiting::run(run, findings).await;
    given_times::run(run, findings).await;
    cases(run, findings, TimeScale::Standstill).await;
    if findings.is_empty() {
        cases(run, findings, TimeScale::RealTime).await;
        short_windows::run(run, findings).await;
    }
}

/// Runs the handwritten cases at the store's clock.
async fn cases<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings, scale: TimeScale) {
    for (number, batch) in scripts().chunks(AT_ONCE).enumerate() {
        let turn = number + usize::from(scale == TimeScale::RealTime);
        let cases = batch.iter().map(|script| replay_script(run, &run.handles()[..1], script, scale, turn));
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
