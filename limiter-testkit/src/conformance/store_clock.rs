//! Scripts at the store's clock.

mod short_windows;

use super::script;
use super::session::run_script::{Pace, run_scripts};
use super::suite::run::Run;

pub(crate) async fn run(run: &mut Run<'_>) {
    let scripts = run.scripts(script::STORE_CLOCK);
    run_scripts(run, &scripts, Pace::Millis, 0).await;
    let scripts = run.scripts(script::GIVEN_TIMES);
    run_scripts(run, &scripts, Pace::Standstill, 0).await;
    if run.findings.is_empty() {
        run_scripts(run, &scripts, Pace::Stretched, 1).await;
        short_windows::run(run).await;
    }
}
