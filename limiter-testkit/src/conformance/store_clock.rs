//! Scripts at the store's clock, and calls under very short windows.

use std::time::Instant;

use limiter_core::{MAX_COST, Policy};

use super::session::Session;
use super::session::run_script::{Pace, run_scripts};
use super::suite::run::Run;
use crate::policies::{limit, policy as of};
use crate::script;

pub(crate) async fn run(run: &mut Run<'_>) {
    let scripts = run.scripts(script::STORE_CLOCK);
    run_scripts(run, &scripts, Pace::Millis, 0).await;
    let scripts = run.scripts(script::GIVEN_TIMES);
    run_scripts(run, &scripts, Pace::Standstill, 0).await;
    if run.mismatches.is_empty() {
        sessions(run).await;
    }
}

/// The number of calls on one log.
const CALLS: usize = 100;

/// The windows of a session, in hundredths of the duration of a call.
const LENGTHS: [u64; 8] = [73, 161, 257, 431, 709, 1_123, 1_871, 3_001];

/// Returns a policy whose windows cover all entries.
fn metered(call: u64) -> Policy {
    let limits: Vec<_> = LENGTHS
        .iter()
        .map(|length| limit(MAX_COST, (length * call / 100).max(1)))
        .collect();
    of(&limits, false)
}

/// Returns limits that are always nearly full: each window covers about as many calls as fit.
fn saturated(call: u64, attempts: bool) -> Policy {
    let limits: Vec<_> = LENGTHS
        .iter()
        .skip(1)
        .step_by(2)
        .map(|length| limit((length / 100).max(1), (length * call / 100).max(1)))
        .collect();
    of(&limits, attempts)
}

/// Repeats all operations, with a session's two policies.
const ALL: &str = "in a row | T2 | 1/1s | 1/1s
    for 0 1 2 0 1 2 0 1 2 0 (acquire 1 called acquired, record 1 called recorded, acquire 1, peek 1 under $,
    settle recorded 2, acquire 1 id $ under $, record 1 id $, refund acquired, acquire 1 under 1, settle recorded 1)";

/// Makes all operations without a pause, with windows so short that entries expire all the time. If an entry expires between two clock
/// reads of one operation, a store that reads its clock twice contradicts itself.
async fn sessions(run: &mut Run<'_>) {
    let Some(mut script) = run.scripts(ALL).pop() else {
        return;
    };
    let mut call = 2;
    for number in 0..run.suite.sizes.in_a_row.div_ceil(CALLS) {
        let few = [limit(2, 3), limit(3, 50), limit(5, 1_000), limit(8, 20_000)];
        script.case.policies = match number % 2 {
            0 => vec![metered(call), saturated(call, true)],
            _ => vec![of(&few, false), saturated(call, false)],
        };
        let mut session = Session::new(run, &script.case, number);
        let start = Instant::now();
        let result = session.script(&script, 0..script.case.steps.len(), 0).await;
        call = (start.elapsed().as_micros() as u64 / CALLS as u64).max(1);
        session.end().await;
        run.count(session.calls());
        if let Err(mismatch) = result {
            // The same calls pass at a given time, so the clock is at fault.
            return run.fail(script.cited(mismatch));
        }
    }
}
