//! Consecutive calls under windows so short that entries expire all the time.
//!
//! If an entry expires between two clock reads of one operation, a store that reads its clock twice contradicts
//! itself.

use std::time::Instant;

use limiter_core::store::Op;
use limiter_core::{MAX_COST, Policy, WindowStore, policy};

use crate::conformance::cases::script::{Script, script};
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::own_clock::Session;
use crate::conformance::own_clock::clock::When;
use crate::conformance::sentence::Sentence::T2;
use crate::conformance::sequence::caller::by_facts;
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::{Run, reset_all};

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    for _ in 0..run.sizes().in_a_row.div_ceil(CALLS) {
        if let Err(text) = records(run).await {
            return findings.push(Finding::new("records in a row at the store's own clock", &[T2.nth(1)], text));
        }
    }
    sessions(run, findings).await;
}

/// The number of units that fit into the windows of the records.
const MAX: u64 = 4;

/// Appends records without a pause. The fourth newest entry leaves each window at about the time of the call, so the
/// exact time of the clock read matters.
async fn records<S: WindowStore + ?Sized>(run: &mut Run<'_, S>) -> Result<(), String> {
    let (store, key) = (run.store().clone(), run.new_key());
    // The limiter's policy keeps entries that the windows of the records do not cover.
    let meter = Policy::from(limit(MAX_COST, 3_600_000_000));
    let mut times: Vec<u64> = Vec::with_capacity(CALLS);
    let mut wrong = None;
    for number in 0..CALLS {
        let window = match times[..] {
            [.., first, _, before, last] => {
                (last - first + (last - before) + number as u64 % 4).saturating_sub(1).max(1)
            }
            _ => 1,
        };
        let limit = limit(MAX, window);
        let policy = Policy::from(limit);
        let mut op = Op::record(&key, &policy).with_name("conformance".into());
        op.limiter_policy = Some(&meter);
        let result = by_facts(&*store, op).await;
        let decision = result.map_err(|error| format!("the store returned the error {error:?}"))?.0;
        let now = decision.at().as_micros();
        let before = times.iter().filter(|at| now.saturating_sub(**at) < window).count() as u64;
        let expected = (before < MAX, (before + 1).min(MAX));
        let got = (decision.allowed(), decision.used());
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
    reset_all(&*store, &[Op::record(&key, &meter).with_name("conformance".into()).log]).await;
    run.count(CALLS as u64 + 1);
    wrong.map_or(Ok(()), Err)
}

/// The number of calls on one log.
const CALLS: usize = 100;

/// The windows of a session, in hundredths of the duration of a call.
const LENGTHS: [u64; 8] = [73, 161, 257, 431, 709, 1_123, 1_871, 3_001];

/// Returns a policy whose windows cover all entries.
fn metered(call: u64) -> Policy {
    let limits: Vec<_> = LENGTHS.iter().map(|length| limit(MAX_COST, (length * call / 100).max(1))).collect();
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

/// Repeats all operations.
fn all(policies: [Policy; 2]) -> Script {
    let [first, second] = policies;
    script("in a row", &[], first).policy(second).for_each(0..CALLS / 10, |script, round| {
        let (id, policy) = ((round % 3) as u8, (round % 2) as u8);
        let script = script.acquire(1).called("acquired").record(1).called("recorded").acquire(1).peek(1).under(policy);
        let script = script.settle("recorded", 2).acquire(1).id(id).under(policy).record(1).id(id);
        script.refund("acquired").acquire(1).under(1).settle("recorded", 1)
    })
}

/// Runs all operations and checks each answer before the next call.
async fn sessions<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let mut call = 2;
    for number in 0..run.sizes().in_a_row.div_ceil(2 * CALLS) {
        let script = match number % 2 {
            0 => all([metered(call), saturated(call, true)]),
            _ => all([policy!("2/3us, 3/50us, 5/1ms, 8/20ms"), saturated(call, false)]),
        };
        let mut session = match Session::new(run, &run.handles()[..1], &script.case, number) {
            Ok(session) => session,
            Err(text) => return findings.push(Finding::new(script.name, &[], text)),
        };
        let start = Instant::now();
        let result = each_step(&mut session, &script).await;
        call = (start.elapsed().as_micros() as u64 / CALLS as u64).max(1);
        session.end().await;
        run.count(session.calls());
        if let Err(mut mismatch) = result {
            // The same calls pass at a given time, so the clock is at fault.
            mismatch.citations.insert(0, T2.nth(1));
            return findings.push(Finding::of("calls in a row at the store's own clock", mismatch));
        }
    }
}

async fn each_step<S>(session: &mut Session<S>, script: &Script) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    for (number, step) in script.case.steps.iter().enumerate() {
        session.step(number, step.operation, When::Store).await?;
    }
    Ok(())
}
