//! Logs that the store must keep while many other keys come and go.

use limiter_core::store::Mode;
use limiter_core::{WindowStore as _, policy};

use crate::conformance::session::Session;
use crate::conformance::suite::run::{Run, log, op};

/// The last two steps run after the other keys.
const KEPT: &str = "a log at the store's clock | F1 | 9/1h
    record 1 id 1, record 2, peek 1, record 1 id 1
a log at given times | F2 | 9/10us
    record 1 id 1, record 2, peek 1, record 1 id 1";

pub(crate) async fn run(run: &mut Run<'_>) {
    let mut sessions = Vec::new();
    for (number, mut script) in run.scripts(KEPT).into_iter().enumerate() {
        if number > 0 {
            script.stand_still();
        }
        let mut session = Session::new(run, &script.case, 0);
        session.sweep = run.suite.sweep.clone();
        let result = session.script(&script, 0..2, 0).await;
        sessions.push((session, script, result));
    }
    let calls = others(run).await;
    run.count(calls);
    for (mut session, script, result) in sessions {
        let result = match result {
            Ok(()) => session.script(&script, 2..4, 0).await,
            Err(mismatch) => Err(mismatch),
        };
        session.end().await;
        run.count_script(
            result
                .map(|()| session.calls())
                .map_err(|mismatch| script.cited(mismatch)),
        );
    }
}

/// Appends to many other keys, sweeps, and removes them. Ignores errors, which other phases report.
async fn others(run: &Run<'_>) -> u64 {
    let (count, prefix, limits) = (run.suite.sizes.other_keys, run.new_key(), policy!("1/1us"));
    let key = |i: usize| format!("{prefix}/{i}");
    for i in 0..count {
        let key = key(i);
        _ = run.store().apply(op(Mode::Record, &key, &limits)).await;
    }
    run.sweep_now().await;
    for i in 0..count {
        _ = run.store().reset(log(&key(i))).await;
    }
    2 * count as u64
}
