//! Waits for the time that a denial states.

use std::time::Duration;

use limiter_core::{WindowStore, policy};

use crate::conformance::cases::script::script;
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::own_clock::Session;
use crate::conformance::own_clock::clock::When;
use crate::conformance::sentence::Sentence::{T2, T4};
use crate::conformance::sequence::call_result::CallResult;
use crate::conformance::sequence::case::Operation;
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

/// Windows from 20 ms to a few seconds. The first one with a denial is enough.
const WINDOWS: [u64; 8] = [20, 40, 80, 160, 320, 640, 1_280, 2_560];

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let mut steps = script("waiting", &[], policy!("1/1s")).acquire(1).acquire(2).peek(1).case;
    for millis in WINDOWS {
        steps.policies = vec![of(&[limit(2, millis * 1_000)], false)];
        let mut session = match Session::new(run, &run.handles()[..1], &steps, 0) {
            Ok(session) => session,
            Err(text) => return findings.push(Finding::new("waiting", &[], text)),
        };
        let operations: Vec<Operation> = steps.steps.iter().map(|step| step.operation).collect();
        let result = waits(&mut session, &operations).await;
        session.end().await;
        run.count(session.calls());
        match result {
            Ok(true) => return,
            Ok(false) => {}
            Err(mismatch) => {
                let title = "waiting for the stated retry time, at the store's clock";
                return findings.push(Finding::of(title, mismatch));
            }
        }
    }
    let text = "an acquire of 1 and then one of 2 under 2 per 2.56 s was never denied at the store's own clock: the store is \
                slower than that, or its clock runs too fast";
    findings.push(Finding::new("waiting for the stated retry time", &[T4.nth(1)], text));
}

/// Returns `false` if the first entry expired before the denial.
async fn waits<S: WindowStore + ?Sized>(session: &mut Session<S>, operations: &[Operation]) -> Result<bool, Mismatch> {
    session.step(0, operations[0], When::Store).await?;
    let Some(CallResult::Decided(denied)) = session.step(1, operations[1], When::Store).await? else {
        return Ok(false);
    };
    let Some(retry) = denied.answer.retry_after else { return Ok(false) };
    // The sleep starts after the store read its clock, so it ends late enough. Clocks may differ slightly.
    let wait = Duration::from_micros(retry) + Duration::from_millis(2).max(Duration::from_micros(retry / 50));
    session.sleep(wait).await?;
    match session.step(2, operations[1], When::Store).await? {
        Some(CallResult::Decided(decided)) if decided.answer.allowed => Ok(true),
        _ => {
            let text =
                format!("the denial stated a retry after {retry} \u{b5}s; the request is still denied after {wait:?}");
            Err(session.wrong(&[T2.nth(1), T4.nth(1)], text))
        }
    }
}
