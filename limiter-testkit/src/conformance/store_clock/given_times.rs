//! Given times and the store's clock on the same log.

use std::time::Duration;

use limiter_core::{Timestamp, WindowStore, policy};

use crate::conformance::cases::script::{Script, script, steps};
use crate::conformance::own_clock::Session;
use crate::conformance::own_clock::clock::When;
use crate::conformance::sentence::Sentence::{L9, S4, T3};
use crate::conformance::sequence::call_result::CallResult;
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

const HOUR: Duration = Duration::from_secs(3_600);

/// The first step runs at the store's clock. A step with a number runs at a given time, this number of hours after
/// the first.
fn scripts() -> Vec<(Script, &'static [Option<i64>])> {
    let clamped = &[T3.nth(1)];
    let (settled, repeated) = (&[T3.nth(1), S4.nth(1)], &[T3.nth(1), L9.nth(1)]);
    vec![
        (
            steps!(script("the store's clock after an entry in the future", clamped, policy!("9/90m")) =>
                record 1, record 1, peek 1, acquire 1, record 1, acquire 9, peek 1),
            &[None, Some(1), None, None, None, None, None],
        ),
        (
            steps!(script("a settlement at the store's clock after an entry in the future", settled, policy!("9/90m")) =>
                record 1 called "now", record 2 called "later", record 3 called "latest",
                settle "now" 4, settle "later" 4, refund "latest", peek 1),
            // Two hours later, the first receipt has expired.
            &[None, Some(1), Some(2), None, None, None, None],
        ),
        (
            steps!(script("a repetition at the store's clock after an entry in the future", repeated, policy!("9/90m")) =>
                record 1 id 1, record 1 id 2, record 1 id 1, record 1 id 2, record 1 id 1),
            &[None, Some(2), None, None, None],
        ),
        (
            steps!(script("the store's clock after entries in the past", clamped, policy!("9/90m")) =>
                peek 1, record 1 called "old", record 2 called "young", acquire 1, settle "old" 5, settle "young" 5,
                refund "young", peek 1),
            &[None, Some(-2), Some(-1), None, None, None, None, None],
        ),
        (
            steps!(script("a given time before the store's clock", clamped, policy!("9/90m")) =>
                record 1, record 1, peek 1, peek 1),
            &[None, Some(-1), Some(-1), None],
        ),
    ]
}

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    for (number, (script, hours)) in scripts().into_iter().enumerate() {
        let mut session = match Session::new(run, &run.handles()[..1], &script.case, number) {
            Ok(session) => session,
            Err(text) => return findings.push(Finding::new(script.name, &[], text)),
        };
        let result = replay_hours(&mut session, &script, hours).await;
        session.end().await;
        run.count(session.calls());
        match result {
            Ok(()) => run.report.cases += 1,
            Err(mismatch) => {
                let citations = script.citations.get(mismatch.step).cloned().unwrap_or_default();
                let citations = if mismatch.citations.is_empty() {
                    citations
                } else {
                    [mismatch.citations.clone(), citations].concat()
                };
                findings.push(Finding::about(format!("case \"{}\"", script.name), &citations, mismatch));
            }
        }
    }
}

async fn replay_hours<S>(session: &mut Session<S>, script: &Script, hours: &[Option<i64>]) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let mut start = None;
    for (number, step) in script.case.steps.iter().enumerate() {
        let given = hours.get(number).copied().flatten().zip(start);
        let when = given.map_or(When::Store, |(hours, start)| When::Given(shifted(start, hours)));
        let reply = session.step(number, step.operation, when).await?;
        start = start.or(reply.as_ref().and_then(CallResult::at));
    }
    session.peek_all(script.case.steps.len().saturating_sub(1)).await
}

fn shifted(start: Timestamp, hours: i64) -> Timestamp {
    let by = HOUR * u32::try_from(hours.unsigned_abs()).unwrap_or(0);
    if hours < 0 {
        Timestamp::from_micros_saturating(start.as_micros().saturating_sub(by.as_micros() as u64))
    } else {
        start.saturating_add(by)
    }
}
