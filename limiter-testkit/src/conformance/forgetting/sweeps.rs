//! Sweeps while other calls append. A log that expired before the sweep may have a new entry before the sweep ends.

use std::sync::Arc;

use limiter_core::store::Mode;
use limiter_core::{Error, Policy, SharedStore, policy};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::suite::Sweep;
use crate::conformance::suite::run::{Run, log, op, reset_all};
use crate::conformance::tasks;
use crate::sentence::Sentence::{F1, L12};

/// The number of keys of each task.
const KEYS: usize = 8;

static SHORT: Policy = policy!("9/1us");
static LONG: Policy = policy!("9/1h");

/// Appends to a log, or reads it, and returns the usage.
async fn call(store: &SharedStore, mode: Mode, key: &str, policy: &Policy) -> Result<u64, Error> {
    Ok(by_facts(store, op(mode, key, policy)).await?.0.used())
}

pub(super) async fn run(run: &mut Run<'_>) {
    let Some(sweep) = run.suite.sweep.clone() else {
        return;
    };
    for _ in 0..run.suite.sizes.tries.div_ceil(4) {
        let text = match at_the_same_time(run, &sweep).await {
            Ok(0) => continue,
            Ok(lost) => {
                format!("{lost} logs lost an entry that was appended while another task swept")
            }
            Err(text) => text,
        };
        return run.fail(Mismatch::new("sweeps and appends", &[F1, L12], text));
    }
}

/// Appends to expired logs in some tasks while another sweeps. Returns the number of lost entries.
async fn at_the_same_time(run: &mut Run<'_>, sweep: &Sweep) -> Result<usize, String> {
    let store = run.store().clone();
    let count = run.suite.sizes.tasks;
    let keys: Arc<[String]> = (0..count * KEYS).map(|_| run.new_key()).collect();
    for key in &*keys {
        _ = call(&store, Mode::Record, key, &SHORT).await;
    }
    let work = {
        let shared = (store.clone(), Arc::clone(sweep), Arc::clone(&keys));
        move |task: usize, turn: usize| {
            let (store, sweep, keys) = shared.clone();
            async move {
                match task {
                    0 => sweep().await,
                    _ => _ = call(&store, Mode::Record, &keys[task * KEYS + turn], &LONG).await,
                }
            }
        }
    };
    tasks::run_all((count, KEYS), work).await?;
    let mut lost = 0;
    for key in &keys[KEYS..] {
        lost += usize::from(matches!(call(&store, Mode::Peek, key, &LONG).await, Ok(0)));
    }
    let logs: Vec<_> = keys.iter().map(log).collect();
    reset_all(&store, &logs).await;
    run.count(4 * keys.len() as u64);
    Ok(lost)
}
