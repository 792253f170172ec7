//! Many tasks on one key.

mod acquires;
mod refunds;
mod tasks;

use limiter_core::SharedStore;

use super::suite::failure::Findings;
use super::suite::run::Run;
use tasks::Contention;

pub(crate) async fn run(run: &mut Run<'_>, findings: &mut Findings) {
    let handles = run.handles()[..1].to_vec();
    for _ in 0..run.sizes().rounds {
        at_once(run, &handles, findings).await;
        if !findings.is_empty() {
            return;
        }
    }
}

/// Runs every scenario once, with the tasks spread over the handles.
pub(crate) async fn at_once(run: &mut Run<'_>, handles: &[SharedStore], findings: &mut Findings) {
    let (tasks, tries) = (run.sizes().tasks, run.sizes().tries);
    let prefix = run.new_key();
    let mut contention =
        Contention { handles, spawner: run.spawner(), tasks, tries, prefix, keys: 0, calls: 0, findings };
    acquires::run(&mut contention).await;
    refunds::run(&mut contention).await;
    let calls = contention.calls;
    run.report.contended += calls;
    run.count(calls);
}
