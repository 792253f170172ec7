//! Several operations as one: compared with the reference store, and seen by others at the same time.

use limiter_core::WindowStore;
use limiter_core::store::At;
use proptest::strategy::Strategy as _;
use proptest::test_runner::TestRunner;

use super::contention;
use super::mismatch::Mismatch;
use super::random::sequences;
use super::session::Session;
use super::session::run_script::{Pace, run_scripts};
use super::suite::Damage;
use super::suite::run::Run;
use crate::script::{self, Script};
use crate::sentence::Sentence::A2;
use crate::strategy;

pub(crate) async fn run(run: &mut Run<'_>) {
    identity(run);
    let scripts = run.scripts(script::SEVERAL);
    let mut is_joint_somewhere = false;
    for script in &scripts {
        let mut session = Session::new(run, &script.case, 0);
        session.peeks = true;
        let result = session.replay(&script.case).await;
        is_joint_somewhere |= session.together.is_ever();
        run.check(result.map_err(|mismatch| script.cited(mismatch)));
    }
    // Some stores never apply operations as one.
    if !is_joint_somewhere {
        return;
    }
    run_scripts(run, &scripts, Pace::Standstill, 0).await;
    let scripts = run.scripts(script::SEVERAL_FORGETTING);
    run_scripts(run, &scripts, Pace::Millis, 0).await;
    // A script says more than a random sequence.
    if !run.mismatches.is_empty() {
        return;
    }
    let made = |_, runner: &mut TestRunner| strategy::joint_cases(2..=24).new_tree(runner);
    sequences(run, run.suite.sizes.sequences.div_ceil(2), made).await;
    if run.mismatches.is_empty() {
        contention::run(run, script::SEVERAL_TOGETHER).await;
    }
    if let Some(damage) = run
        .suite
        .damage
        .clone()
        .filter(|_| run.mismatches.is_empty())
    {
        for script in run.scripts(script::DAMAGED) {
            let result = damaged(run, script, &damage).await;
            run.check(result);
        }
    }
    if run.mismatches.is_empty() && run.suite.damage.is_some() {
        contention::run(run, script::DAMAGED).await;
    }
}

/// Makes the steps of a script one after another, with a log that becomes unreadable.
async fn damaged(run: &Run<'_>, mut script: Script, damage: &Damage) -> Result<u64, Mismatch> {
    script.give_times();
    let mut session = Session::new(run, &script.case, 0);
    let mut result = session.script(&script, 0..script.alone, 0).await;
    let step = script.case.steps[script.damaged.unwrap_or(0)];
    if let Some(call) = session.model.call(step, At::StoreClock) {
        damage(session.caller.store_keys.log(&call.log)).await;
        session.model.damaged = Some(call.log);
    }
    if result.is_ok() {
        let others = script.alone..script.case.steps.len();
        result = session.script(&script, others, 0).await;
    }
    session.ended(&script, result).await
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
