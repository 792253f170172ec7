//! Sweeps while other calls append. A log that expired before the sweep may have a new entry before the sweep ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Error, Policy, SharedStore, policy};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::sentence::Sentence;
use crate::conformance::sentence::Sentence::{F1, L12};
use crate::conformance::sleep::sleep_on;
use crate::conformance::suite::run::{Run, log, op, reset_all};

/// The number of keys of each task.
const KEYS: usize = 8;
/// How often a sweep is polled before another call appends.
const MAX_POLLS: usize = 8;

const CITATIONS: &[Sentence] = &[F1, L12];

/// Appends to a log, or reads it, and returns the usage.
async fn call(store: &SharedStore, mode: Mode, key: &str, policy: &Policy) -> Result<u64, Error> {
    Ok(by_facts(store, op(mode, key, policy)).await?.0.used())
}

pub(super) async fn run(run: &mut Run<'_>) {
    let Some(sweep) = run.suite.sweep.clone() else {
        return;
    };
    for polls in 0..=MAX_POLLS {
        if let Ok(0) = between_polls(run, polls).await {
            let text = "a log expired; then a sweep began, an append followed, and the sweep ended: the log is empty";
            return run.fail(Mismatch::new(
                "an append between two polls of a sweep",
                CITATIONS,
                text,
            ));
        }
    }
    for _ in 0..run.suite.sizes.tries.div_ceil(4) {
        let tasks = run.suite.sizes.tasks;
        let keys: Vec<String> = (0..tasks * KEYS).map(|_| run.new_key()).collect();
        for key in &keys {
            _ = call(run.store(), Mode::Record, key, &policy!("9/1us")).await;
        }
        let (store, sweep, all) = (run.store().clone(), sweep.clone(), Arc::new(keys));
        let keys = Arc::clone(&all);
        let work = move |task: usize, turn: usize| {
            let (store, sweep, keys) = (store.clone(), sweep.clone(), Arc::clone(&keys));
            async move {
                match task {
                    0 => sweep().await,
                    _ => {
                        _ = call(
                            &store,
                            Mode::Record,
                            &keys[task * KEYS + turn],
                            &policy!("9/1h"),
                        )
                        .await;
                    }
                }
            }
        };
        if let Err(text) = run.suite.spawner.run_all((tasks, KEYS), work).await {
            return run.fail(Mismatch::new("sweeps and appends", CITATIONS, text));
        }
        let mut lost = 0;
        for key in &all[KEYS..] {
            lost += usize::from(matches!(
                call(run.store(), Mode::Peek, key, &policy!("9/1h")).await,
                Ok(0)
            ));
        }
        let logs: Vec<_> = all.iter().map(log).collect();
        reset_all(run.store(), &logs).await;
        run.count(4 * all.len() as u64);
        if lost > 0 {
            let text =
                format!("{lost} logs lost an entry that was appended while another task swept");
            return run.fail(Mismatch::new("sweeps and appends", CITATIONS, text));
        }
    }
}

/// Appends to an expired log after some polls of a sweep. Returns the usage afterwards.
async fn between_polls(run: &mut Run<'_>, polls: usize) -> Result<u64, Error> {
    let (Some(sweep), store, key) = (run.suite.sweep.as_ref(), run.store().clone(), run.new_key())
    else {
        return Ok(1);
    };
    call(&store, Mode::Record, &key, &policy!("9/1us")).await?;
    // A fast store sweeps within the microsecond of the append.
    _ = sleep_on(&store, Duration::from_millis(1)).await;
    let mut sweep = pin!(sweep());
    let mut is_done = false;
    for _ in 0..polls {
        is_done = is_done || futures::poll!(sweep.as_mut()).is_ready();
    }
    let appended = call(&store, Mode::Record, &key, &policy!("9/1h")).await;
    if !is_done {
        sweep.await;
    }
    let used = call(&store, Mode::Peek, &key, &policy!("9/1h")).await;
    reset_all(&store, &[log(&key)]).await;
    run.count(4);
    appended?;
    used
}
