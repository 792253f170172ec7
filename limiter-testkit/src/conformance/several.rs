//! Several operations as one: compared with the reference store, and seen by others at the same time.

use std::time::Duration;

use limiter_core::store::{At, Facts, JointFacts, JointOp, Mode, Op, Outcome, decide};
use limiter_core::{
    Counting, LimitStatus, Policy, SharedStore, Timestamp, WindowStore as _, policy,
};

use super::mismatch::Mismatch;
use super::policies::START;
use super::random::Random;
use super::result::RawFacts;
use super::sentence::Sentence;
use super::sentence::Sentence::{A1, A2, A4, A5, A6, F1, F2};
use super::sleep::sleep_on;
use super::suite::run::{Run, log, op, reset_all};
use crate::answer::Answer;
use crate::reference::ReferenceStore;

const LOGS: usize = 4;
/// The calls of a sequence.
const CALLS: usize = 10;

/// An error, and the sentence that it breaks.
type Wrong = (Sentence, String);

pub(crate) async fn run(run: &mut Run<'_>) {
    let (store, key) = (run.store().clone(), run.new_key());
    let keys = keys(&key);
    match goes_together(&store, &keys).await {
        Ok(true) => reset_all(&store, &keys.each_ref().map(log)).await,
        Ok(false) => return run.count(LOGS as u64),
        Err(text) => return run.fail(Mismatch::new("a call that fails", &[A1], text)),
    }
    // One stream for all sequences: the first numbers of neighbouring seeds are alike.
    let mut random = Random(run.suite.seed);
    for number in 0..(run.suite.sizes.sequences / 4).max(1) {
        let keys = self::keys(&run.new_key());
        let result = sequence(&store, &keys, &mut random).await;
        reset_all(&store, &keys.each_ref().map(log)).await;
        run.count((CALLS * LOGS) as u64);
        if let Err((citation, text)) = result {
            run.fail(Mismatch::new(
                format!("random sequence {number}"),
                &[citation],
                text,
            ));
        }
    }
    if !run.mismatches.is_empty() {
        return;
    }
    if let Err((citation, text)) = kept(run, &store).await {
        run.fail(Mismatch::new("logs after joint appends", &[citation], text));
    }
    if let Err(text) = at_the_same_time(run, &store).await {
        run.fail(Mismatch::new("concurrent tasks on two logs", &[A2], text));
    }
}

fn keys(key: &str) -> [Vec<u8>; LOGS] {
    std::array::from_fn(|number| format!("{key}/{number}").into_bytes())
}

/// Returns `true` if the store applies operations on these logs as one. If not, none may have changed.
async fn goes_together(store: &SharedStore, keys: &[Vec<u8>; LOGS]) -> Result<bool, String> {
    let policy = policy!("9/1m");
    let ops: Vec<JointOp<'_>> = keys
        .iter()
        .map(|key| op(Mode::Acquire, key, &policy).into())
        .collect();
    if store
        .apply_all(&ops)
        .await
        .map_err(|error| error.to_string())?
        .is_some()
    {
        return Ok(true);
    }
    for key in keys {
        let facts = store
            .apply(op(Mode::Peek, key, &policy))
            .await
            .map_err(|error| error.to_string())?;
        if facts.log.newest.is_some() {
            return Err("the store returned `None`, and a log has an entry".to_owned());
        }
    }
    Ok(false)
}

/// Makes random calls on some logs, in the store and in the reference store.
async fn sequence(
    store: &SharedStore,
    keys: &[Vec<u8>; LOGS],
    random: &mut Random,
) -> Result<(), Wrong> {
    let attempts = |policy: Policy| policy.with_counting(Counting::Attempts);
    let (two, coarse) = (policy!("2/5s, 4/20s"), policy!("6/20s~1s"));
    let policies = [
        policy!("3/10s"),
        attempts(policy!("3/10s")),
        two.clone(),
        attempts(two),
        coarse,
        policy!("9/1m"),
    ];
    let (reference, gives_time, mut now) = (ReferenceStore::new(), random.below(3) > 0, START);
    let mut transcript = String::new();
    for _ in 0..CALLS {
        now += [0, 1, 400_000, 2_500_000, 6_000_000, 0][random.below(6)];
        now -= [0, 0, 0, 1, 3_000_000][random.below(5)];
        let at = Timestamp::from_micros_saturating(now);
        let mut places: Vec<usize> = (0..LOGS).collect();
        (0..LOGS).for_each(|place| places.swap(place, random.below(LOGS)));
        let made = places[..2 + random.below(LOGS - 1)].iter().map(|place| {
            let policy = &policies[random.below(policies.len())];
            let mode = [
                Mode::Acquire,
                Mode::Acquire,
                Mode::Acquire,
                Mode::Record,
                Mode::Peek,
            ][random.below(5)];
            let most = if mode == Mode::Record {
                7
            } else {
                policy.smallest_max() as usize
            };
            let mut op = op(mode, &keys[*place], policy).with_cost(1 + random.below(most) as u64);
            if random.below(4) == 0 {
                op = op.with_limiter_policy(&policies[random.below(policies.len())]);
            }
            if mode != Mode::Peek && random.below(3) == 0 && op.receipt_window().is_some() {
                op = op.with_id(1 + random.below(3) as u128);
            }
            let op = if gives_time { op.at(at) } else { op };
            JointOp {
                op,
                is_advisory: random.below(4) == 0,
                keeps_charge: random.below(5) == 0,
            }
        });
        let ops: Vec<JointOp<'_>> = made.collect();
        transcript += &format!("\n{ops:?}");
        compare(store, &reference, &ops)
            .await
            .map_err(|(citation, text)| (citation, format!("{text}{transcript}")))?;
    }
    Ok(())
}

/// Makes one call, and repeats it on the reference store at the time that it had.
async fn compare(
    store: &SharedStore,
    reference: &ReferenceStore,
    ops: &[JointOp<'_>],
) -> Result<(), Wrong> {
    let facts = |results: JointFacts| results.into_iter().collect::<Result<Vec<Facts>, _>>();
    let failed = |error: limiter_core::Error| (A2, format!("the store failed: {error}"));
    let Some(got) = store.apply_all(ops).await.map_err(failed)? else {
        return Err((
            A1,
            "the store returned `None` for logs that it changed as one before".to_owned(),
        ));
    };
    let got = facts(got).map_err(failed)?;
    if got.len() != ops.len() {
        return Err((
            A2,
            format!("{} results for {} operations", got.len(), ops.len()),
        ));
    }
    let Some(clock) = got.first().map(|facts| facts.log.clock) else {
        return Ok(());
    };
    reference.stop_clock(clock);
    let expected = reference
        .apply_all(ops)
        .await
        .map_err(failed)?
        .unwrap_or_default();
    let expected = facts(expected).map_err(failed)?;
    let denies = ops
        .iter()
        .zip(&expected)
        .any(|(joint, facts)| joint.denies(facts.admitted));
    for (number, ((joint, got), expected)) in ops.iter().zip(got).zip(expected).enumerate() {
        let citation = match expected.outcome {
            _ if (got.log.now, got.log.clock) != (expected.log.now, expected.log.clock) => A2,
            Outcome::Repeated(_) => A6,
            _ if denies => A5,
            _ => A4,
        };
        let [got, expected] = [got, expected].map(|facts| seen(joint, facts));
        if got != expected {
            let text = format!(
                "operation {number}: expected {expected}, found {got}, after these operations:"
            );
            return Err((citation, text));
        }
    }
    Ok(())
}

/// Returns the caller's view of the facts.
fn seen(joint: &JointOp<'_>, facts: Facts) -> String {
    let op = joint.answered_by(&facts);
    if let Err(error) = facts.verify(&op) {
        return error.to_string();
    }
    let raw_facts = RawFacts::from(&facts);
    let repeats = matches!(facts.outcome, Outcome::Repeated(_));
    let decision = decide(&op, facts);
    if joint.op.mode == Mode::Record && !decision.appended() {
        // It may be above the maximum, so that no wait helps: which limit binds is unspecified.
        let values =
            |limit: &LimitStatus| (limit.used(), limit.refill_after(), limit.reset_after());
        let limits: Vec<_> = decision.limits().iter().map(values).collect();
        return format!("{raw_facts:?}, {:?}, {limits:?}", decision.at());
    }
    let mut answer = Answer::from(&decision);
    // A store need not know whether a repeated entry has a receipt.
    answer.receipt = answer.receipt.filter(|_| !repeats);
    format!("{raw_facts:?}, {answer:?}")
}

/// Some tasks charge two logs as one, others would charge the first but are denied by a third. No other task sees the first two differ.
async fn at_the_same_time(run: &mut Run<'_>, store: &SharedStore) -> Result<(), String> {
    let (policy, full) = (policy!("1000000/1h"), policy!("1/1h"));
    let keys = keys(&run.new_key());
    store
        .apply(op(Mode::Acquire, &keys[2], &full))
        .await
        .map_err(|error| error.to_string())?;
    let work = {
        let (store, keys, policy, full) =
            (store.clone(), keys.clone(), policy.clone(), full.clone());
        move |task: usize, _| {
            let (store, keys, policy, full) =
                (store.clone(), keys.clone(), policy.clone(), full.clone());
            async move {
                let mode = if task % 3 == 2 {
                    Mode::Peek
                } else {
                    Mode::Acquire
                };
                let second = if task % 3 == 1 {
                    op(mode, &keys[2], &full)
                } else {
                    op(mode, &keys[1], &policy)
                };
                store
                    .apply_all(&[op(mode, &keys[0], &policy).into(), second.into()])
                    .await
            }
        }
    };
    let sizes = &run.suite.sizes;
    let made = run
        .suite
        .spawner
        .run_all((sizes.tasks.max(3), sizes.tries), work)
        .await?;
    let (mut charged, mut calls) = (0, 1);
    let used = |facts: &Facts| facts.log.usage.first().map_or(0, |usage| usage.used);
    for (task, result) in made
        .into_iter()
        .enumerate()
        .flat_map(|(task, results)| results.into_iter().map(move |result| (task, result)))
    {
        let results = result
            .map_err(|error| error.to_string())?
            .ok_or("the store returned `None`")?;
        let facts: Vec<Facts> = results
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let [first, second] = &facts[..] else {
            return Err(format!("{} results for 2 operations", facts.len()));
        };
        calls += 2;
        charged += u64::from(task % 3 == 0);
        if task % 3 != 1 && used(first) != used(second) {
            return Err(format!(
                "one log has {} units, the other {}",
                used(first),
                used(second)
            ));
        }
    }
    let end = store
        .apply(op(Mode::Peek, &keys[0], &policy))
        .await
        .map_err(|error| error.to_string())?;
    reset_all(store, &keys.each_ref().map(log)).await;
    run.count(calls);
    if used(&end) == charged {
        Ok(())
    } else {
        Err(format!(
            "{} units are charged, expected {charged}",
            used(&end)
        ))
    }
}

/// Checks that a joint append renews the expiry of its logs, and that the store keeps given times for a minute.
async fn kept(run: &mut Run<'_>, store: &SharedStore) -> Result<(), Wrong> {
    fn call<'a>(mode: Mode, key: &'a [u8], policy: &'a Policy, at: At) -> Op<'a> {
        let mut call = op(mode, key, policy);
        call.at = at;
        call
    }
    let (short, long) = (policy!("9/50ms"), policy!("9/1h"));
    let start = Timestamp::from_micros_saturating(START);
    for (at, citation) in [(At::StoreClock, F1), (At::Given(start), F2)] {
        let failed = |error: limiter_core::Error| (citation, error.to_string());
        let keys = keys(&run.new_key());
        let policy = if citation == F1 { &long } else { &short };
        for key in &keys {
            let first = store.apply(call(Mode::Record, key, &short, at)).await;
            first.map_err(failed)?;
        }
        let appends: Vec<_> = keys
            .iter()
            .map(|key| call(Mode::Record, key, policy, at).into())
            .collect();
        let appended = store.apply_all(&appends).await.map_err(failed)?;
        let slept = sleep_on(store, Duration::from_millis(60)).await;
        slept.map_err(|text| (citation, text))?;
        run.sweep_now().await;
        for (key, facts) in keys.iter().zip(appended.unwrap_or_default()) {
            let peek = store.apply(call(Mode::Peek, key, policy, at)).await;
            let [before, after] =
                [facts, peek].map(|facts| facts.map(|facts| facts.log.usage[0].used));
            let (before, after) = (before.map_err(failed)?, after.map_err(failed)?);
            if before != after {
                let text =
                    format!("after a joint record, a log had {before} units, and later {after}");
                return Err((citation, text));
            }
        }
        reset_all(store, &keys.each_ref().map(log)).await;
        run.count(4 * LOGS as u64);
    }
    Ok(())
}
