//! Futures that are dropped before they finish, and the duration of one poll.

mod polls;

use std::time::Duration;

use super::caller::Route;
use super::mismatch::Mismatch;
use super::session::Session;
use super::suite::run::Run;
use super::tasks::{DropAfter, sleep, within};
use crate::script::{self, Clock, Script};
use crate::sentence::Sentence::C2;

/// The maximum number of polls before a future is dropped.
const MAX_POLLS: usize = 16;
/// How long a future is polled before it is dropped, if it waits for something else. In microseconds.
const POLL_MICROS: [u64; 6] = [20, 100, 300, 1_000, 3_000, 10_000];

/// Returns the time limit for all later calls together.
fn later_calls(run: &Run<'_>) -> Duration {
    run.suite.sizes.call / 2
}

pub(crate) async fn run(run: &mut Run<'_>) {
    polls::run(run).await;
    for script in run.scripts(script::DROPPED) {
        // After 0, 1, 2, … polls until the call finishes. If it had to wait, also after several delays.
        let (mut has_waited, mut finished) = (false, false);
        let polls = (0..=MAX_POLLS).map(DropAfter::Polls);
        for after in polls.chain(POLL_MICROS.map(DropAfter::Micros)) {
            let is_delay = matches!(after, DropAfter::Micros(_));
            if finished && (!is_delay || !has_waited) {
                continue;
            }
            let Some((done, result)) = once(run, script.clone(), after).await else {
                let title = format!("{} whose future is dropped after {after}", script.name);
                let most = later_calls(run);
                let text = format!(
                    "after that, calls on the same key and on another key did not return within {most:?}"
                );
                // A store that hangs once would hang again.
                return run.fail(Mismatch::new(title, &[C2], text));
            };
            if let Err(mismatch) = result {
                let circumstance = format!(", whose future is dropped after {after}");
                run.fail(script.cited(mismatch).under(&circumstance, &[]));
            }
            finished = done;
            has_waited |= !done && matches!(after, DropAfter::Polls(1..));
        }
    }
}

/// Runs a script and drops one call. Returns `true` if that call had already finished, and `None` if later calls do not return.
async fn once(
    run: &mut Run<'_>,
    mut script: Script,
    after: DropAfter,
) -> Option<(bool, Result<(), Mismatch>)> {
    let mut session = Session::new(run, &script.case, 0);
    (session.route, session.sweep) = (Some(Route::Facts), run.suite.sweep.clone());
    let dropped = script.dropped.unwrap_or(0);
    let steps = script.case.steps.len();
    if !matches!(script.clock, Clock::Store) {
        script.give_times();
    }
    if let Err(mismatch) = session.script(&script, 0..dropped, 1_000).await {
        return Some((false, Err(mismatch)));
    }
    let call = script.case.call_at(dropped);
    let when = script.when(dropped, None);
    let later = call.end..steps;
    let finished = session.dropped_call(&script.case, call, when, after).await;
    let finished = match finished {
        Ok(finished) => finished,
        Err(mismatch) => return Some((false, Err(mismatch))),
    };
    let task = tokio::spawn(async move {
        // The log is one of two, and each peek shows which.
        session.peeks = true;
        let mut result = session.peek_all(dropped, when).await;
        if result.is_ok() {
            result = session.script(&script, later, 1_000).await;
        }
        (session, result)
    });
    let made = within(later_calls(run), task).await?;
    let (session, result) = made.ok()?;
    run.count(session.calls());
    if !finished {
        // The dropped call may still arrive.
        sleep(Duration::from_millis(1)).await;
    }
    session.end().await;
    Some((finished, result))
}
