//! Several operations as one: compared with the reference store, and seen by others at the same time.

use std::time::Duration;

use limiter_core::store::{At, Facts, JointFacts, JointOp, Mode, Op, Outcome, decide};
use limiter_core::{
    Counting, Error, LimitStatus, Policy, SharedStore, Timestamp, WindowStore as _, policy,
};

use super::damaged;
use super::mismatch::Mismatch;
use super::policies::START;
use super::random::Random;
use super::result::RawFacts;
use super::sentence::Sentence::{self, A1, A2, A4, A5, A6, F1, F2};
use super::sleep::sleep_on;
use super::suite::run::{Run, log, op, reset_all};
use crate::answer::Answer;
use crate::reference::ReferenceStore;

const LOGS: usize = 4;
/// The calls of a sequence.
const CALLS: usize = 10;

/// The sentence that a store breaks, and a description.
struct Wrong(Sentence, String);

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self(A2, format!("the store failed: {error}"))
    }
}

impl From<String> for Wrong {
    fn from(text: String) -> Self {
        Self(A2, text)
    }
}

fn is(holds: bool, sentence: Sentence, text: impl FnOnce() -> String) -> Result<(), Wrong> {
    holds.then_some(()).ok_or_else(|| Wrong(sentence, text()))
}

type Keys = [Vec<u8>; LOGS];

fn keys(run: &Run<'_>) -> Keys {
    let key = run.new_key();
    std::array::from_fn(|number| format!("{key}/{number}").into_bytes())
}

async fn reset(store: &SharedStore, keys: &Keys) {
    reset_all(store, &keys.each_ref().map(log)).await;
}

pub(crate) async fn run(run: &mut Run<'_>) {
    let store = run.store().clone();
    match goes_together(run, &store).await {
        Ok(true) => {}
        Ok(false) => return run.count(LOGS as u64),
        Err(wrong) => return fail(run, "a call that changes a log or fails", Err(wrong)),
    }
    // One stream for all sequences: the first numbers of neighbouring seeds are alike.
    let mut random = Random(run.suite.seed);
    for number in 0..(run.suite.sizes.sequences / 4).max(1) {
        let keys = keys(run);
        let result = sequence(&store, &keys, &mut random).await;
        reset(&store, &keys).await;
        run.count((CALLS * LOGS) as u64);
        fail(run, format!("random sequence {number}"), result);
    }
    if run.mismatches.is_empty() {
        for (at, citation) in [(At::StoreClock, F1), (At::Given(start()), F2)] {
            let result = kept(run, &store, at, citation).await;
            fail(run, "logs after joint appends", result);
        }
        let result = at_the_same_time(run, &store).await;
        fail(run, "concurrent tasks on two logs", result);
        damaged::run(run).await;
    }
}

fn start() -> Timestamp {
    Timestamp::from_micros_saturating(START)
}

fn fail(run: &mut Run<'_>, title: impl Into<String>, result: Result<(), Wrong>) {
    if let Err(Wrong(citation, text)) = result {
        run.fail(Mismatch::new(title, &[citation], text));
    }
}

/// Returns `true` if the store applies operations on new logs as one. If not, none may have changed.
async fn goes_together(run: &Run<'_>, store: &SharedStore) -> Result<bool, Wrong> {
    let (keys, policy) = (keys(run), policy!("9/1m"));
    let acquire = |key| op(Mode::Acquire, key, &policy).into();
    let ops: [JointOp<'_>; LOGS] = keys.each_ref().map(acquire);
    let goes = store.apply_all(&ops).await?.is_some();
    for key in keys.iter().filter(|_| !goes) {
        let newest = store.apply(op(Mode::Peek, key, &policy)).await?.log.newest;
        let text = || "the store returned `None`, and a log has an entry".to_owned();
        is(newest.is_none(), A1, text)?;
    }
    reset(store, &keys).await;
    Ok(goes)
}

/// Makes random calls on some logs, in the store and in the reference store.
async fn sequence(store: &SharedStore, keys: &Keys, random: &mut Random) -> Result<(), Wrong> {
    const MODES: [Mode; 5] = [
        Mode::Acquire,
        Mode::Acquire,
        Mode::Acquire,
        Mode::Record,
        Mode::Peek,
    ];
    let attempts = |policy: Policy| policy.with_counting(Counting::Attempts);
    let two = policy!("2/5s, 4/20s");
    let policies = [
        policy!("3/10s"),
        attempts(policy!("3/10s")),
        two.clone(),
        attempts(two),
        policy!("6/20s~1s"),
        policy!("9/1m"),
    ];
    let (reference, gives_time, mut now) = (ReferenceStore::new(), !random.one_in(3), START);
    let mut transcript = String::new();
    for _ in 0..CALLS {
        now += random.pick(&[0, 1, 400_000, 2_500_000, 6_000_000, 0]);
        now -= random.pick(&[0, 0, 0, 1, 3_000_000]);
        let at = Timestamp::from_micros_saturating(now);
        let mut places: Vec<usize> = (0..LOGS).collect();
        (0..LOGS).for_each(|place| places.swap(place, random.below(LOGS)));
        let mut ops: Vec<JointOp<'_>> = Vec::new();
        for place in &places[..2 + random.below(LOGS - 1)] {
            let policy = &policies[random.below(policies.len())];
            let (mode, max) = (random.pick(&MODES), policy.smallest_max());
            let cost = random.within(1..=if mode == Mode::Record { 7 } else { max });
            let mut op = op(mode, &keys[*place], policy).with_cost(cost);
            if random.one_in(4) {
                op = op.with_limiter_policy(&policies[random.below(policies.len())]);
            }
            if mode != Mode::Peek && random.one_in(3) && op.receipt_window().is_some() {
                op = op.with_id(1 + random.below(3) as u128);
            }
            ops.push(JointOp {
                op: if gives_time { op.at(at) } else { op },
                is_advisory: random.one_in(4),
                keeps_charge: random.one_in(5),
            });
        }
        transcript += &format!("\n{ops:?}");
        let compared = compare(store, &reference, &ops).await;
        compared.map_err(|Wrong(citation, text)| Wrong(citation, text + &transcript))?;
    }
    Ok(())
}

fn all(results: Option<JointFacts>) -> Result<Vec<Facts>, Wrong> {
    let text = "the store returned `None` for logs that it changed as one before";
    let results = results.ok_or_else(|| Wrong(A1, text.to_owned()))?;
    Ok(results.into_iter().collect::<Result<_, Error>>()?)
}

/// Makes one call, and repeats it on the reference store at the time that it had.
async fn compare(
    store: &SharedStore,
    reference: &ReferenceStore,
    ops: &[JointOp<'_>],
) -> Result<(), Wrong> {
    let got = all(store.apply_all(ops).await?)?;
    let text = || format!("{} results for {} operations", got.len(), ops.len());
    is(got.len() == ops.len(), A2, text)?;
    reference.stop_clock(got[0].log.clock);
    let expected = all(reference.apply_all(ops).await?)?;
    let mut pairs = ops.iter().zip(&expected);
    let denies = pairs.any(|(joint, facts)| joint.denies(facts.admitted));
    for (number, ((joint, got), expected)) in ops.iter().zip(got).zip(expected).enumerate() {
        let citation = match expected.outcome {
            _ if (got.log.now, got.log.clock) != (expected.log.now, expected.log.clock) => A2,
            Outcome::Repeated { .. } => A6,
            _ if denies => A5,
            _ => A4,
        };
        let [got, expected] = [got, expected].map(|facts| seen(joint, facts));
        is(got == expected, citation, || {
            format!("operation {number}: expected {expected}, found {got}, after these operations:")
        })?;
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
    let repeats = matches!(facts.outcome, Outcome::Repeated { .. });
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

fn used(facts: &Facts) -> u64 {
    facts.log.usage[0].used
}

/// Some tasks charge two logs as one, others would charge the first but are denied by a third. No other task sees the first two differ.
async fn at_the_same_time(run: &mut Run<'_>, store: &SharedStore) -> Result<(), Wrong> {
    static MANY: Policy = policy!("1000000/1h");
    static ONE: Policy = policy!("1/1h");
    let keys = keys(run);
    store.apply(op(Mode::Acquire, &keys[2], &ONE)).await?;
    let work = {
        let shared = (store.clone(), keys.clone());
        move |task: usize, _| {
            let (store, keys) = shared.clone();
            async move {
                let mode = [Mode::Acquire, Mode::Acquire, Mode::Peek][task % 3];
                let second = match task % 3 {
                    1 => op(mode, &keys[2], &ONE),
                    _ => op(mode, &keys[1], &MANY),
                };
                let ops = [op(mode, &keys[0], &MANY).into(), second.into()];
                store.apply_all(&ops).await
            }
        }
    };
    let size = (run.suite.sizes.tasks.max(3), run.suite.sizes.tries);
    let made = run.suite.spawner.run_all(size, work).await?;
    let mut charged = 0;
    for (task, results) in made.into_iter().enumerate() {
        charged += results.len() as u64 * u64::from(task % 3 == 0);
        for result in results {
            let used: Vec<u64> = all(result?)?.iter().map(used).collect();
            let is_right = used.len() == 2 && (task % 3 == 1 || used[0] == used[1]);
            is(is_right, A2, || format!("two logs have {used:?} units"))?;
        }
    }
    let end = used(&store.apply(op(Mode::Peek, &keys[0], &MANY)).await?);
    reset(store, &keys).await;
    run.count((2 * size.0 * size.1 + 1) as u64);
    let text = || format!("{end} units are charged, expected {charged}");
    is(end == charged, A2, text)
}

/// Checks that a joint append renews the expiry of its logs, and that the store keeps given times for a minute.
async fn kept(
    run: &mut Run<'_>,
    store: &SharedStore,
    at: At,
    citation: Sentence,
) -> Result<(), Wrong> {
    let (short, long) = (policy!("9/50ms"), policy!("9/1h"));
    let policy = if citation == F1 { &long } else { &short };
    let keys = keys(run);
    let timed = |mode, key, policy| -> Op<'_> {
        let mut op = op(mode, key, policy);
        op.at = at;
        op
    };
    for key in &keys {
        store.apply(timed(Mode::Record, key, &short)).await?;
    }
    let appends: Vec<_> = keys
        .iter()
        .map(|key| timed(Mode::Record, key, policy).into())
        .collect();
    let appended = all(store.apply_all(&appends).await?)?;
    sleep_on(store, Duration::from_millis(60)).await?;
    run.sweep_now().await;
    for (key, before) in keys.iter().zip(&appended) {
        let after = store.apply(timed(Mode::Peek, key, policy)).await?;
        let (before, after) = (used(before), used(&after));
        let text = || format!("after a joint record, a log had {before} units, and later {after}");
        is(before == after, citation, text)?;
    }
    reset(store, &keys).await;
    run.count(4 * LOGS as u64);
    Ok(())
}
