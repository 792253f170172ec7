//! Several operations as one: compared with the reference store, and seen by others at the same time.

use limiter_core::store::{JointFacts, Mode};
use limiter_core::{Error, Policy, SharedStore, WindowStore, policy};
use proptest::strategy::Strategy as _;
use proptest::test_runner::TestRunner;

use super::damaged;
use super::generated::{is_joint, repeat, sequences};
use super::mismatch::Mismatch;
use super::script;
use super::sentence::Sentence::A2;
use super::session::Session;
use super::session::run_script::{Pace, run_scripts};
use super::suite::run::{Run, log, op, reset_all};
use super::tasks;
use crate::strategy;

pub(crate) async fn run(run: &mut Run<'_>) {
    identity(run);
    let scripts = run.scripts(script::SEVERAL);
    for script in &scripts {
        let mut session = Session::new(run, &script.case, 0);
        session.peeks = true;
        let result = session.replay(&script.case).await;
        run.joined += session.together.values().filter(|was| **was).count();
        run.count_script(result.map_err(|mismatch| script.cited(mismatch)));
    }
    // Some stores never apply operations as one.
    if run.joined == 0 {
        return;
    }
    run_scripts(run, &scripts, Pace::Standstill, 0).await;
    let scripts = run.scripts(script::SEVERAL_FORGETTING);
    run_scripts(run, &scripts, Pace::Millis, 0).await;
    repeat(run, is_joint).await;
    let mut made = |_, runner: &mut TestRunner| strategy::joint_cases(2..=24).new_tree(runner);
    sequences(run, run.suite.sizes.sequences.div_ceil(2), &mut made).await;
    if run.mismatches.is_empty()
        && let Err(text) = at_the_same_time(run).await
    {
        run.fail(Mismatch::new("concurrent tasks on two logs", &[A2], text));
    }
    if run.mismatches.is_empty() {
        damaged::run(run).await;
    }
}

/// Checks that operations for one store cannot go to another.
fn identity(run: &mut Run<'_>) {
    let Some(store) = run.store().inner() else {
        return;
    };
    let Some(identity) = store.identity() else {
        return;
    };
    let is_its = |other: &dyn WindowStore| other.identity() == Some(identity);
    // A store that lies at the beginning of its wrapper has the wrapper's address, but nobody else reaches it.
    let passes_by =
        |inner: &dyn WindowStore| is_its(inner) && std::ptr::from_ref(inner).addr() != identity;
    let text = if !is_its(store) {
        "it changes from call to call"
    } else if store.inner().is_some_and(passes_by) {
        "it is that of the store that this one wraps: joint operations would pass by the wrapper"
    } else if run.suite.beside.as_deref().is_some_and(is_its) {
        "another store has the same: joint operations would go to the wrong store"
    } else {
        return;
    };
    run.fail(Mismatch::new("the store's identity", &[A2], text));
}

/// Returns the usage of each log. `None` if the store no longer applies these operations as one.
fn used(results: Option<JointFacts>) -> Result<Option<Vec<u64>>, Error> {
    let Some(results) = results else {
        return Ok(None);
    };
    let used = results
        .into_iter()
        .map(|facts| facts.map(|facts| facts.log.usage[0].used));
    used.collect::<Result<_, _>>().map(Some)
}

/// Some tasks charge two logs as one, others would charge the first but are denied by a third. No other task sees the first two differ.
async fn at_the_same_time(run: &mut Run<'_>) -> Result<(), String> {
    static MANY: Policy = policy!("1000000/1h");
    static ONE: Policy = policy!("1/1h");
    let store = run.store().clone();
    let keys: [String; 3] = std::array::from_fn(|_| run.new_key());
    let failed = |error: Error| format!("the store failed: {error}");
    let filled = store.apply(op(Mode::Acquire, &keys[2], &ONE)).await;
    filled.map_err(failed)?;
    let work = {
        let shared: (SharedStore, _) = (store.clone(), keys.clone());
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
    let mut charged = 0;
    for (task, results) in tasks::run_all(size, work).await?.into_iter().enumerate() {
        for result in results {
            let Some(used) = used(result.map_err(failed)?).map_err(failed)? else {
                continue;
            };
            charged += u64::from(task % 3 == 0);
            if used.len() != 2 || task % 3 != 1 && used[0] != used[1] {
                return Err(format!("two logs have {used:?} units"));
            }
        }
    }
    let end = store.apply(op(Mode::Peek, &keys[0], &MANY)).await;
    let end = end.map_err(failed)?.log.usage[0].used;
    reset_all(&store, &keys.each_ref().map(log)).await;
    run.count((2 * size.0 * size.1 + 1) as u64);
    if end == charged {
        return Ok(());
    }
    Err(format!("{end} units are charged, expected {charged}"))
}
