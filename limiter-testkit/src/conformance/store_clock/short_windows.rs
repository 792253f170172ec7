//! Calls in a row, under windows so short that entries leave all the time.
//!
//! A store that reads its clock twice for one operation shows when an entry leaves a window in between. So there are many
//! entries, and many windows that they leave one by one.

use std::time::Instant;

use limiter_core::{MAX_COST, Policy, WindowStore, policy};

use crate::conformance::cases::script::{Script, script};
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::own_clock::clock::When;
use crate::conformance::own_clock::session::Session;
use crate::conformance::sentence::Sentence::T2;
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

/// How many calls one log gets.
const CALLS: usize = 100;

/// The windows, in hundredths of the time that a call takes.
const LENGTHS: [u64; 8] = [73, 161, 257, 431, 709, 1_123, 1_871, 3_001];

/// Windows in which everything counts.
fn metered(call: u64) -> Policy {
    let limits: Vec<_> = LENGTHS.iter().map(|length| limit(MAX_COST, (length * call / 100).max(1))).collect();
    of(&limits, false)
}

/// Limits that are always just full: in each window there are about as many calls as fit.
fn saturated(call: u64, attempts: bool) -> Policy {
    let limits: Vec<_> = LENGTHS
        .iter()
        .skip(1)
        .step_by(2)
        .map(|length| limit((length / 100).max(1), (length * call / 100).max(1)))
        .collect();
    of(&limits, attempts)
}

/// All operations, again and again.
fn all(policies: [Policy; 2]) -> Script {
    let [first, second] = policies;
    script("in a row", &[], first).policy(second).for_each(0..CALLS / 10, |script, round| {
        let (id, policy) = ((round % 3) as u8, (round % 2) as u8);
        let script = script.acquire(1).called("acquired").record(1).called("recorded").acquire(1).peek(1).under(policy);
        let script = script.settle("recorded", 2).acquire(1).id(id).under(policy).record(1).id(id);
        script.refund("acquired").acquire(1).under(1).settle("recorded", 1)
    })
}

fn acquires(policy: Policy) -> Script {
    script("acquires in a row", &[], policy).for_each(0..CALLS, |script, _| script.acquire(1))
}

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let mut call = 2;
    for number in 0..run.sizes().in_a_row.div_ceil(CALLS) {
        let script = match number % 4 {
            0 => all([metered(call), saturated(call, true)]),
            1 => acquires(saturated(call, false)),
            2 => all([policy!("2/3us, 3/50us, 5/1ms, 8/20ms"), saturated(call, false)]),
            _ => acquires(saturated(call, true)),
        };
        let session = Session::new(&run.handles()[..1], &script.case, &run.new_key(), run.tolerance(), number);
        let mut session = match session {
            Ok(session) => session,
            Err(text) => return findings.push(Finding::new(script.name, &[], text)),
        };
        let start = Instant::now();
        let result = in_a_row(&mut session, &script).await;
        call = (start.elapsed().as_micros() as u64 / CALLS as u64).max(1);
        session.end().await;
        run.count(session.calls());
        if let Err(mut mismatch) = result {
            // The same calls at one given time are answered as they should be.
            mismatch.cites.insert(0, T2.nth(1));
            return findings.push(Finding::of("calls in a row at the store's own clock", mismatch));
        }
    }
}

async fn in_a_row<S>(session: &mut Session<S>, script: &Script) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    for (number, step) in script.case.steps.iter().enumerate() {
        session.step(number, step.operation, When::Store).await?;
    }
    Ok(())
}
