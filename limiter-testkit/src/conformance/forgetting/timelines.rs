//! Logs over a few hundred milliseconds. All run at the same time.

use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::{Policy, Timestamp, WindowStore, policy};

use crate::conformance::cases::script::{Script, script};
use crate::conformance::generated::strategy::START;
use crate::conformance::own_clock::Session;
use crate::conformance::own_clock::clock::When;
use crate::conformance::sentence::Sentence::{F1, F2};
use crate::conformance::sequence::call_result::CallResult;
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::Run;

/// A case whose steps wait for milliseconds.
struct Timeline {
    script: Script,
    /// The steps that run at given times.
    given: Vec<(usize, GivenTime)>,
}

/// A time that the caller gives.
#[derive(Clone, Copy)]
enum GivenTime {
    /// In microseconds since the epoch.
    At(u64),
    /// In microseconds after the time of the first step.
    AfterFirst(u64),
}

use GivenTime::{AfterFirst, At};

/// Returns a timeline at the store's clock.
fn kept(name: &'static str, policy: Policy, steps: impl FnOnce(Script) -> Script) -> Timeline {
    Timeline { script: steps(script(name, &[F1.nth(1)], policy)), given: Vec::new() }
}

/// Returns a timeline whose first steps run at given times and whose other steps run at the store's clock.
fn given(
    name: &'static str,
    policy: Policy,
    times: &[Option<GivenTime>],
    steps: impl FnOnce(Script) -> Script,
) -> Timeline {
    let given = times.iter().enumerate().filter_map(|(number, time)| Some((number, (*time)?))).collect();
    Timeline { script: steps(script(name, &[F2.nth(1)], policy)), given }
}

fn at_the_stores_clock() -> Vec<Timeline> {
    // Reads a log until shortly before the end of a 600 ms window.
    let peeks = |script: Script, policy| script.peek(1).under(policy).after(300).peek(1).under(policy).after(250);
    let untouched = |name, step: fn(Script) -> Script| {
        kept(name, policy!("9/600ms"), |script| {
            let script = script.policy(policy!("1/20ms")).record(1).id(1).called("it").record(1).called("other");
            peeks(step(script).under(1), 0)
        })
    };
    vec![
        kept("one entry", policy!("9/1400ms"), |script| {
            let peeks = script.record(1).for_each([700, 350, 290, 160], |script, after| script.peek(1).after(after));
            peeks.record(2).peek(1)
        }),
        kept("the longest window is the last", policy!("9/50ms, 9/600ms"), |script| peeks(script.record(1), 0)),
        kept("the longest window is the first", policy!("9/600ms, 9/50ms"), |script| peeks(script.record(1), 0)),
        kept("the limiter's window is the longer one", policy!("9/600ms"), |script| {
            peeks(script.policy(policy!("9/50ms")).through_a_limiter().record(1).under(1), 0)
        }),
        kept("the operation's window is the longer one", policy!("9/50ms"), |script| {
            peeks(script.policy(policy!("9/600ms")).through_a_limiter().record(1).under(1), 1)
        }),
        kept("a later append", policy!("9/500ms"), |script| script.record(1).record(1).after(400).peek(1).after(400)),
        kept("a later append under a longer window", policy!("9/50ms"), |script| {
            peeks(script.policy(policy!("9/600ms")).record(1).record(1).under(1), 1)
        }),
        kept("a denied attempt", policy!("1/500ms"), |script| {
            script.counting_attempts().acquire(1).acquire(1).after(400).peek(1).after(400)
        }),
        kept("an id", policy!("9/600ms"), |script| script.record(1).id(1).record(1).id(1).after(550)),
        untouched("a peek shortens nothing", |script| script.peek(1)),
        untouched("a denied acquire shortens nothing", |script| script.acquire(1)),
        untouched("a repetition shortens nothing", |script| script.record(1).id(1)),
        untouched("a settlement shortens nothing", |script| script.settle("it", 3)),
        untouched("a refund shortens nothing", |script| script.refund("other")),
        kept("a log that may have been forgotten", policy!("9/100ms"), |script| {
            let script = script.record(1).id(1).called("it").peek(1).after(150).settle("it", 3).refund("it");
            script.record(2).id(1).called("new").peek(1).settle("new", 1).after(30).refund("it").reset()
        }),
    ]
}

fn at_given_times() -> Vec<Timeline> {
    let short = || policy!("9/10us");
    let times = |times: &[u64]| times.iter().map(|time| Some(At(*time))).collect::<Vec<_>>();
    // The last step finds the entries still in their window.
    let later = |script: Script| script.peek(1).after(700).peek(1).after(800);
    let past = times(&[START, START + 5, START + 9]);
    let beginning = times(&[0, 5, 9]);
    let end = times(&[(1 << 53) - 20, (1 << 53) - 15, (1 << 53) - 11]);
    let clamped = times(&[START + 10_000_000, START, START + 9, START + 9]);
    let ahead = |micros| Some(AfterFirst(micros));
    let seconds = 1_000_000;
    vec![
        given("an entry at a given time in the past", short(), &past, |script| later(script.record(1))),
        given("an entry at the epoch", short(), &beginning, |script| later(script.record(1))),
        given("an entry at the largest timestamp", short(), &end, |script| later(script.record(1))),
        given("an entry at a given time before the newest", short(), &clamped, |script| {
            later(script.record(1).record(2))
        }),
        given(
            "an entry at a given time, which is now",
            policy!("9/50ms"),
            &[None, ahead(0), ahead(20_000), ahead(49_000)],
            |script| later(script.peek(1).record(1)),
        ),
        given(
            "an entry at a given time after one at the store's clock",
            policy!("9/50ms"),
            &[None, ahead(1_000), ahead(20_000), ahead(49_000)],
            |script| later(script.record(1).record(1)),
        ),
        // Clamped to the entry in the future, and kept as long as that entry counts.
        given("an entry in the future", policy!("9/300ms"), &[None, ahead(600_000)], |script| {
            script.about(&[F1.nth(1)]).peek(1).record(1).record(2).peek(1).after(400).peek(1).after(400)
        }),
        given(
            "an entry at a given time far in the future",
            policy!("9/1s"),
            &[None, ahead(3_600 * seconds), ahead(3_600 * seconds + 900_000)],
            |script| script.peek(1).record(1).peek(1).after(1_200),
        ),
    ]
}

/// Returns timelines that end shortly before the minute that F2 grants is over.
fn after_a_minute() -> Vec<Timeline> {
    let times = |times: &[u64]| times.iter().map(|time| Some(At(*time))).collect::<Vec<_>>();
    vec![
        given(
            "an entry at a given time, kept for a minute",
            policy!("9/10us"),
            &times(&[START, START + 9]),
            |script| script.record(1).peek(1).after(59_000),
        ),
        given(
            "an entry at a given time, kept for its window and a minute",
            policy!("9/10s"),
            &times(&[START, START + 9_000_000]),
            |script| script.record(1).peek(1).after(69_000),
        ),
        given(
            "an entry at a given time before the newest, kept for the difference and a minute",
            policy!("9/10us"),
            &times(&[START + 10_000_000, START, START + 9]),
            |script| script.record(1).record(2).peek(1).after(69_000),
        ),
        kept("an entry kept for more than a minute", policy!("9/70s"), |script| script.record(1).peek(1).after(69_000)),
    ]
}

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let mut timelines = at_the_stores_clock();
    timelines.extend(at_given_times());
    if run.sizes().wait > Duration::from_secs(70) {
        timelines.extend(after_a_minute());
    }
    let results =
        join_all(timelines.iter().enumerate().map(|(turn, timeline)| replay_timeline(run, timeline, turn))).await;
    for result in results {
        match result {
            Ok(calls) => {
                run.count(calls);
                run.report.cases += 1;
            }
            Err(finding) => {
                run.count(1);
                findings.push(finding);
            }
        }
    }
}

async fn replay_timeline<S: WindowStore + ?Sized>(
    run: &Run<'_, S>,
    timeline: &Timeline,
    turn: usize,
) -> Result<u64, Finding> {
    let script = &timeline.script;
    let title = format!("a log that must be kept: {}", script.name);
    let session = Session::new(run, &run.handles()[..1], &script.case, turn);
    let mut session = session.map_err(|text| Finding::new(&title, &[], text))?;
    let result = steps(run, timeline, &mut session).await;
    session.end().await;
    match result {
        Ok(()) => Ok(session.calls()),
        Err(mismatch) => {
            let mut citations = script.citations.get(mismatch.step).cloned().unwrap_or_default();
            if let Some(first) = mismatch.citations.first().filter(|first| !citations.contains(first)) {
                citations.insert(0, *first);
            }
            Err(Finding::about(title, &citations, mismatch))
        }
    }
}

async fn steps<S>(run: &Run<'_, S>, timeline: &Timeline, session: &mut Session<S>) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let (start, mut first, mut elapsed) = (Instant::now(), None, 0);
    for (number, step) in timeline.script.case.steps.iter().enumerate() {
        let after = u64::try_from(step.after).unwrap_or(0);
        elapsed += after;
        if after > 0 {
            // Calls take time too, so wait only for the rest.
            let late = start.elapsed().saturating_sub(Duration::from_millis(elapsed - after));
            session.sleep(Duration::from_millis(after).saturating_sub(late)).await?;
        }
        run.sweep_now().await;
        let given = timeline.given.iter().find(|(of, _)| *of == number).map(|(_, given)| *given);
        let when = match (given, first) {
            (Some(At(micros)), _) => When::Given(Timestamp::from_micros_saturating(micros)),
            (Some(AfterFirst(micros)), Some(first)) => {
                let first: Timestamp = first;
                When::Given(first.saturating_add(Duration::from_micros(micros)))
            }
            _ => When::Store,
        };
        let reply = session.step(number, step.operation, when).await?;
        first = first.or(reply.as_ref().and_then(CallResult::at));
    }
    Ok(())
}
