//! Checks logs shortly before the store may forget them, and afterwards.

mod last_moment;
mod sweeps;

use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{WindowStore as _, policy};

use super::session::Session;
use super::session::run_script::{Pace, run_scripts};
use super::suite::run::{Run, log, op};
use crate::script;

pub(crate) async fn run(run: &mut Run<'_>) {
    among_other_keys(run).await;
    last_moment::run(run).await;
    sweeps::run(run).await;
    let mut scripts = run.scripts(script::FORGETTING);
    if run.suite.sizes.wait > Duration::from_secs(70) {
        scripts.extend(run.scripts(script::FORGETTING_A_MINUTE));
    }
    run_scripts(run, &scripts, Pace::Millis, 0).await;
}

/// The last two steps run after the other keys.
const KEPT: &str = "a log at the store's clock | F1 | 9/1h
    record 1 id 1, record 2, peek 1, record 1 id 1
a log at given times | F2 | 9/10us
    record 1 id 1, record 2, peek 1, record 1 id 1";

/// Checks that the store keeps logs while many other keys come and go.
async fn among_other_keys(run: &mut Run<'_>) {
    let mut sessions = Vec::new();
    for (number, mut script) in run.scripts(KEPT).into_iter().enumerate() {
        if number > 0 {
            script.give_times();
        }
        let mut session = Session::new(run, &script.case, 0);
        session.sweep = run.suite.sweep.clone();
        let result = session.script(&script, 0..2, 0).await;
        sessions.push((session, script, result));
    }
    // Ignores errors, which other phases report.
    let count = run.suite.sizes.in_a_row / 2;
    let prefix = run.new_key();
    let limits = policy!("1/1us");
    let keys: Vec<String> = (0..count).map(|i| format!("{prefix}/{i}")).collect();
    for key in &keys {
        _ = run.store().apply(op(Mode::Record, key, &limits)).await;
    }
    run.sweep_now().await;
    for key in &keys {
        _ = run.store().reset(log(key)).await;
    }
    run.count(2 * count as u64);
    for (mut session, script, mut result) in sessions {
        if result.is_ok() {
            result = session.script(&script, 2..4, 0).await;
        }
        run.check(session.ended(&script, result).await);
    }
}
