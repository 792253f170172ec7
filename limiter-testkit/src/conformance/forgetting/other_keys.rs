//! Logs that the store must keep while many other keys come and go.

use limiter_core::store::{LogKey, Op};
use limiter_core::{Name, Timestamp, WindowStore, policy};

use crate::conformance::cases::script::{Script, script, steps};
use crate::conformance::generated::strategy::START;
use crate::conformance::own_clock::Session;
use crate::conformance::own_clock::clock::When;
use crate::conformance::sentence::Sentence::{F1, F2};
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let four = |script: Script| steps!(script => record 1 id 1, record 2, peek 1, record 1 id 1);
    let clock = four(script("a log at the store's clock", &[F1.nth(1)], policy!("9/1h")));
    let given = four(script("a log at given times", &[F2.nth(1)], policy!("9/10us")));
    let at = When::Given(Timestamp::from_micros_saturating(START));
    let mut sessions = Vec::new();
    for (script, when) in [(clock, When::Store), (given, at)] {
        match Session::new(run, &run.handles()[..1], &script.case, 0) {
            Ok(session) => sessions.push((session, script, when)),
            Err(text) => return findings.push(Finding::new(script.name, &[], text)),
        }
    }
    let mut results = Vec::new();
    for (session, script, when) in &mut sessions {
        results.push(steps(session, script, 0..2, *when).await);
    }
    let calls = others(run).await;
    run.count(calls);
    for ((session, script, when), result) in sessions.iter_mut().zip(results) {
        let result = match result {
            Ok(()) => steps(session, script, 2..4, *when).await,
            Err(mismatch) => Err(mismatch),
        };
        session.end().await;
        run.count(session.calls());
        if let Err(mismatch) = result {
            let citations = script.citations.get(mismatch.step).cloned().unwrap_or_default();
            let title = format!("{}, while {} other keys come", script.name, run.sizes().other_keys);
            findings.push(Finding::about(title, &citations, mismatch));
        }
    }
}

async fn steps<S>(
    session: &mut Session<S>,
    script: &Script,
    range: std::ops::Range<usize>,
    when: When,
) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    for number in range {
        session.step(number, script.case.steps[number].operation, when).await?;
    }
    Ok(())
}

/// Appends to many other keys, sweeps, and removes them. Ignores errors, which other phases report.
async fn others<S: WindowStore + ?Sized>(run: &Run<'_, S>) -> u64 {
    let (count, prefix, limits) = (run.sizes().other_keys, run.new_key(), policy!("1/1us"));
    let key = |i: usize| format!("{prefix}/{i}");
    for i in 0..count {
        let key = key(i);
        let op = Op::record(&key, &limits).with_name(Name::new("conformance"));
        _ = run.store().apply(op).await;
    }
    run.sweep_now().await;
    for i in 0..count {
        _ = run.store().reset(LogKey::new(Name::new("conformance"), &key(i))).await;
    }
    2 * count as u64
}
