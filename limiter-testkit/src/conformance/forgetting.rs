//! Checks logs shortly before the store may forget them, and afterwards.

mod last_moment;
mod other_keys;
mod sweeps;

use std::time::Duration;

use super::script;
use super::sentence::Sentence::F2;
use super::session::Session;
use super::session::run_script::{Pace, run_scripts};
use super::suite::run::Run;

pub(crate) async fn run(run: &mut Run<'_>) {
    swept(run).await;
    other_keys::run(run).await;
    last_moment::run(run).await;
    sweeps::run(run).await;
    let mut scripts = run.scripts(script::FORGETTING);
    if run.suite.sizes.wait > Duration::from_secs(70) {
        scripts.extend(run.scripts(script::FORGETTING_A_MINUTE));
    }
    run_scripts(run, &scripts, Pace::Millis, 0).await;
}

/// Runs the scripts with a sweep before every call. Their times are given, so F2 protects every log.
async fn swept(run: &mut Run<'_>) {
    if run.suite.sweep.is_none() {
        return;
    }
    for script in run.scripts(script::GIVEN_TIMES) {
        let mut session = Session::new(run, &script.case, 1);
        session.sweep = run.suite.sweep.clone();
        let result = session
            .replay(&script.case)
            .await
            .map_err(|mismatch| script.cited(mismatch));
        run.count_script(
            result.map_err(|mismatch| mismatch.under(", with a sweep before every call", &[F2])),
        );
    }
}
