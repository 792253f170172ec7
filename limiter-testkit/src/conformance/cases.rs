//! The scripts at given times. At least one covers each sentence of the contract that a sequence of calls can break.

mod keys;

use super::script::Planning;
use super::suite::run::Run;

pub(crate) async fn run(run: &mut Run<'_>) {
    let rounds = [Planning::WithPeeks, Planning::AsWritten, Planning::CountingOtherwise];
    for planning in rounds.into_iter().take(run.suite.sizes.rounds_of_cases) {
        for script in run.planned(planning) {
            let result = run.replay_script(script, None, planning as usize, false).await;
            run.count_script(result);
        }
        if !run.findings.is_empty() {
            break;
        }
    }
    if run.findings.is_empty() {
        keys::run(run).await;
    }
}
