//! A log that the store cannot read, in joint calls among combined ones.

use futures::future::join_all;
use limiter_core::store::{JointOp, Mode};
use limiter_core::{ErrorKind, SharedStore, WindowStore as _, policy};

use super::mismatch::Mismatch;
use super::sentence::Sentence::{self, A1, A2, A7, A8, L3, L8, S8};
use super::suite::run::{Run, log, op, reset_all};

const MAX: u64 = 5;
const CALLS: usize = 4 * MAX as usize;

/// Runs if the suite can [damage](super::Suite::damage) a log.
pub(crate) async fn run(run: &mut Run<'_>) {
    let Some(damage) = run.suite.damage.clone() else {
        return;
    };
    let keys = ["shared", "own", "damaged"].map(|name| format!("{}/{name}", run.new_key()));
    let store = run.store().clone();
    _ = store
        .apply(op(Mode::Record, &keys[2], &policy!("9/1h")))
        .await;
    damage(log(&keys[2])).await;
    let mut result = Ok(());
    for _ in 0..3 {
        result = result.and(combined(run, &store, &keys).await);
        reset_all(&store, &keys.each_ref().map(log)[..2]).await;
    }
    run.count(3 * CALLS as u64);
    if let Err((sentences, text)) = result.and(recovered(&store, &keys[2]).await) {
        run.fail(Mismatch::new("a log that cannot be read", &sentences, text));
    }
    reset_all(&store, &keys.each_ref().map(log)).await;
}

type Wrong = (Vec<Sentence>, String);

fn is(holds: bool, sentences: &[Sentence], text: impl FnOnce() -> String) -> Result<(), Wrong> {
    holds
        .then_some(())
        .ok_or_else(|| (sentences.to_vec(), text()))
}

/// Makes calls that a store may combine, because one task waits for all of them. All charge the shared log.
async fn combined(run: &Run<'_>, store: &SharedStore, keys: &[String; 3]) -> Result<(), Wrong> {
    let shared = policy!("5/1h");
    let own = policy!("1000000/1h");
    let parts = |call: usize| -> Vec<JointOp<'_>> {
        let (place, is_advisory) = match call % 4 {
            0 => return vec![op(Mode::Acquire, &keys[0], &shared).into()],
            1 => (1, false),
            2 => (2, false),
            _ => (2, true),
        };
        let op = |place: usize, policy| op(Mode::Acquire, &keys[place], policy);
        let second = JointOp {
            is_advisory,
            ..op(place, &own).into()
        };
        vec![op(0, &shared).into(), second]
    };
    let made = (0..CALLS).map(|call| async move { store.apply_all(&parts(call)).await });
    let mut admitted = 0;
    for (call, made) in join_all(made).await.into_iter().enumerate() {
        let kind = made.as_ref().err().map(limiter_core::Error::kind);
        let expected = (call % 4 == 2).then_some(ErrorKind::Corrupt);
        let text = || format!("call {call} returned {made:?}, expected {expected:?}");
        is(kind == expected, &[A7], text)?;
        let Ok(made) = &made else { continue };
        let facts = made.as_ref().ok_or_else(|| {
            let text = "the store returned `None` for logs that go together";
            (vec![A1], text.to_owned())
        })?;
        let kinds = facts
            .iter()
            .map(|facts| facts.as_ref().err().map(limiter_core::Error::kind));
        let damaged = kinds
            .filter(|kind| *kind == Some(ErrorKind::Corrupt))
            .count();
        let text = || format!("call {call} returned {facts:?}");
        is(damaged == usize::from(call % 4 == 3), &[A7], text)?;
        admitted += u64::from(facts[0].as_ref().is_ok_and(|facts| facts.admitted));
    }
    let text = || format!("{admitted} of {MAX} admitted on the log that all calls share");
    is(admitted == MAX, &[L3, A2, A8], text)?;
    run.sweep_now().await;
    for (place, policy, sentences) in [(0, &shared, [L8, A8]), (1, &own, [L8, A2])] {
        let peek = store.apply(op(Mode::Peek, &keys[place], policy)).await;
        let used = peek.map(|facts| facts.log.usage[0].used);
        let is_right = used.as_ref().is_ok_and(|used| *used == MAX || place > 0);
        let text = || format!("afterwards, the log `{}` has {used:?} units", keys[place]);
        is(is_right, &sentences, text)?;
    }
    let peek = store.apply(op(Mode::Peek, &keys[2], &own)).await;
    let kind = peek.as_ref().err().map(limiter_core::Error::kind);
    let text = || format!("a call changed the damaged log: a peek returns {peek:?}");
    is(kind == Some(ErrorKind::Corrupt), &[L8, A7], text)
}

/// A reset removes a damaged log.
async fn recovered(store: &SharedStore, damaged: &str) -> Result<(), Wrong> {
    let policy = policy!("9/1h");
    let reset = store.reset(log(damaged)).await;
    let after = store.apply(op(Mode::Acquire, damaged, &policy)).await;
    let used = after.map(|facts| facts.log.usage[0].used);
    let text = || format!("a reset returned {reset:?}, and then a log had {used:?} units");
    let is_right = reset.as_ref().is_ok_and(|is_removed| *is_removed);
    is(
        is_right && used.as_ref().is_ok_and(|used| *used == 1),
        &[S8],
        text,
    )
}
