//! Scripts at the store's clock, and calls under very short windows.

use std::time::Instant;

use limiter_core::store::Mode;
use limiter_core::{MAX_COST, Policy};

use super::caller::by_facts;
use super::mismatch::Mismatch;
use super::policies::{limit, policy as of};
use super::script;
use super::sentence::Sentence::T2;
use super::session::Session;
use super::session::run_script::{Pace, run_scripts};
use super::suite::run::{Run, log, op, reset_all};

pub(crate) async fn run(run: &mut Run<'_>) {
    let scripts = run.scripts(script::STORE_CLOCK);
    run_scripts(run, &scripts, Pace::Millis, 0).await;
    let scripts = run.scripts(script::GIVEN_TIMES);
    run_scripts(run, &scripts, Pace::Standstill, 0).await;
    if run.mismatches.is_empty() {
        run_scripts(run, &scripts, Pace::Stretched, 1).await;
        short_windows(run).await;
    }
}

/// Makes consecutive calls under windows so short that entries expire all the time.
///
/// If an entry expires between two clock reads of one operation, a store that reads its clock twice contradicts itself.
async fn short_windows(run: &mut Run<'_>) {
    for _ in 0..run.suite.sizes.in_a_row.div_ceil(CALLS) {
        if let Err(text) = records(run).await {
            return run.fail(Mismatch::new(
                "records in a row at the store's own clock",
                &[T2],
                text,
            ));
        }
    }
    sessions(run).await;
}

/// The number of units that fit into the windows of the records.
const MAX: u64 = 4;

/// Appends records without a pause. The fourth newest entry leaves each window at about the time of the call, so the
/// exact time of the clock read matters.
async fn records(run: &mut Run<'_>) -> Result<(), String> {
    let (store, key) = (run.store().clone(), run.new_key());
    // The limiter's policy keeps entries that the windows of the records do not cover.
    let meter = Policy::from(limit(MAX_COST, 3_600_000_000));
    let mut times: Vec<u64> = Vec::with_capacity(CALLS);
    let mut wrong = None;
    for number in 0..CALLS {
        let window = match times[..] {
            [.., first, _, before, last] => (last - first + (last - before) + number as u64 % 4)
                .saturating_sub(1)
                .max(1),
            _ => 1,
        };
        let limit = limit(MAX, window);
        let policy = Policy::from(limit);
        let mut op = op(Mode::Record, &key, &policy);
        op.limiter_policy = Some(&meter);
        let result = by_facts(&store, op).await;
        let decision = result
            .map_err(|error| format!("the store returned the error {error:?}"))?
            .0;
        let now = decision.at().as_micros();
        let before = times
            .iter()
            .filter(|at| now.saturating_sub(**at) < window)
            .count() as u64;
        let expected = (before < MAX, (before + 1).min(MAX));
        let got = (decision.fits(), decision.used());
        if got != expected {
            wrong = wrong.or(Some(format!(
                "record {number} in a row, under {limit}: the store said that it happened at {now} \u{b5}s, when {before} entries \
                 counted before it. Expected allowed {} and {} used, got {} and {}. The store may read its clock more than once \
                 for an operation",
                expected.0, expected.1, got.0, got.1
            )));
        }
        times.push(now);
    }
    reset_all(&store, &[log(&key)]).await;
    run.count(CALLS as u64 + 1);
    wrong.map_or(Ok(()), Err)
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

/// Runs all operations and checks each result before the next call.
async fn sessions(run: &mut Run<'_>) {
    let Some(mut script) = run.scripts(ALL).pop() else {
        return;
    };
    let mut call = 2;
    for number in 0..run.suite.sizes.in_a_row.div_ceil(2 * CALLS) {
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
