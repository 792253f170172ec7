//! Several handles of one store.

use super::contention;
use super::script::Planning;
use super::sentence::Sentence::L12;
use super::sequence::Plan;
use super::sequence::replay::Mismatch;
use super::session::run_script::{Pace, run_script};
use super::suite::run::Run;

/// The last calls go through a handle that is opened after the first calls.
const LATE: &str = "a handle that is opened late | L12 | 9/1h
    record 1 id 1 called a, record 2 called b, record 1 id 1, settle a 3, refund b, peek 1";
const FIRST_LATE_CALL: usize = 2;

pub(crate) async fn run(run: &mut Run<'_>) {
    if run.handles.len() < 2 {
        return;
    }
    opened_late(run).await;
    in_turn(run).await;
    if run.mismatches.is_empty() {
        contention::run(run).await;
    }
}

async fn opened_late(run: &mut Run<'_>) {
    let planned = run.scripts(LATE).pop().and_then(|script| Plan::of(&script.case).ok().map(|plan| (script, plan)));
    if let (Some(planned), Some(late)) = (planned, run.late.take()) {
        let result = run.replay_script(&planned, Some((FIRST_LATE_CALL, late)), 0, false).await;
        run.count_script(result);
    }
}

/// Runs the scripts, each call through the next handle. Each handle must notice the others' changes.
async fn in_turn(run: &mut Run<'_>) {
    for (number, planned) in run.planned(Planning::AsWritten).iter().enumerate() {
        for first in 0..run.suite.sizes.rounds_of_cases.min(2) {
            let result = run.replay_script(planned, None, number + first, false).await;
            run.count_script(result.map_err(through_handles));
        }
        let result = run_script(run, &planned.0, Pace::Standstill, number).await;
        run.count_script(result.map_err(through_handles));
    }
}

fn through_handles(mismatch: Mismatch) -> Mismatch {
    mismatch.under(", through several handles in turn", &[L12])
}
