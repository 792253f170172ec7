//! Scripts at the store's clock.

mod short_windows;

use super::script;
use super::session::run_script::{Pace, run_scripts};
use super::suite::failure::Findings;
use super::suite::run::Run;

pub(crate) async fn run(run: &mut Run<'_>, findings: &mut Findings) {
    let scripts = run.scripts(script::STORE_CLOCK, findings);
    run_scripts(run, &scripts, Pace::Millis, 0, findings).await;
    let scripts = run.scripts(script::GIVEN_TIMES, findings);
    run_scripts(run, &scripts, Pace::Standstill, 0, findings).await;
    if findings.is_empty() {
        run_scripts(run, &scripts, Pace::Stretched, 1, findings).await;
        short_windows::run(run, findings).await;
    }
}
