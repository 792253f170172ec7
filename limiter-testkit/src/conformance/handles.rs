//! Several handles of one store.

use super::contention;
use super::session::Session;
use super::suite::run::Run;
use crate::script;
use crate::sentence::Sentence::L12;

/// The last calls go through a handle that is opened after the first calls.
const LATE: &str = "a handle that is opened late | L12 | 9/1h
    record 1 id 1 called a, record 2 called b, record 1 id 1, settle a 3, refund b, peek 1";
const FIRST_LATE_STEP: usize = 2;

pub(crate) async fn run(run: &mut Run<'_>) {
    if run.handles.len() < 2 {
        return;
    }
    opened_late(run).await;
    in_turn(run).await;
    if run.mismatches.is_empty() {
        contention::run(run, script::TOGETHER).await;
    }
}

async fn opened_late(run: &mut Run<'_>) {
    let late = run.late.get_mut().ok().and_then(Option::take);
    let (Some(mut script), Some(late)) = (run.scripts(LATE).pop(), late) else {
        return;
    };
    script.give_times();
    let mut session = Session::new(run, &script.case, 0);
    let steps = script.case.steps.len();
    let mut result = session.script(&script, 0..FIRST_LATE_STEP, 0).await;
    if result.is_ok() {
        session.handles = vec![late.await];
        result = session.script(&script, FIRST_LATE_STEP..steps, 0).await;
    }
    if result.is_ok() {
        result = session.finish(script.when(0, None)).await;
    }
    run.check(session.ended(&script, result).await);
}

/// Runs the scripts, each call through the next handle. Each handle must notice the others' changes.
async fn in_turn(run: &mut Run<'_>) {
    for (number, script) in run.scripts(script::GIVEN_TIMES).iter().enumerate() {
        for first in 0..run.suite.sizes.rounds_of_cases.min(2) {
            let mut session = Session::new(run, &script.case, number + first);
            let result = session.replay(&script.case).await;
            run.check(result.map_err(|mismatch| {
                let mismatch = script.cited(mismatch);
                mismatch.under(", through several handles in turn", &[L12])
            }));
        }
    }
}
