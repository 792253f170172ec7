//! Many tasks on one key.

mod acquires;
mod refunds_and_resets;
mod settlements;
mod tasks;

use std::sync::Arc;

use limiter_core::WindowStore;

use crate::conformance::suite::failure::Findings;
use crate::conformance::suite::run::Run;
use tasks::Contention;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let handles = run.handles()[..1].to_vec();
    for _ in 0..run.sizes().rounds {
        at_once(run, &handles, findings).await;
        if !findings.is_empty() {
            return;
        }
    }
}

/// Runs every scenario once, with the tasks spread over the handles.
pub(crate) async fn at_once<S>(run: &mut Run<'_, S>, handles: &[Arc<S>], findings: &mut Findings)
where
    S: WindowStore + ?Sized,
{
    let (tasks, tries) = (run.sizes().tasks, run.sizes().tries);
    let mut contention =
        Contention { handles, spawner: run.spawner(), tasks, tries, prefix: run.new_key(), keys: 0, calls: 0 };
    acquires::run(&mut contention, findings).await;
    settlements::run(&mut contention, findings).await;
    refunds_and_resets::run(&mut contention, findings).await;
    let calls = contention.calls;
    run.report.contended += calls;
    run.count(calls);
}
