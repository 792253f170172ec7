//! Reads a log until the very microsecond from which the store may forget it.

use std::time::{Duration, Instant};

use limiter_core::store::Mode;
use limiter_core::{Error, WindowStore as _};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::policies::{limit, policy};
use crate::conformance::sentence::Sentence::F1;
use crate::conformance::sleep::{sleep, sleep_on};
use crate::conformance::suite::run::{Run, op, reset_all};

/// The window, in microseconds.
const WINDOW: u64 = 3_000;
/// The number of logs. The thread may be preempted at the moment that matters.
const LOGS: usize = 16;
/// The time limit for one log. A slow store may never be read at the right time.
const DEADLINE: Duration = Duration::from_millis(50);

pub(super) async fn run(run: &mut Run<'_>) {
    for _ in 0..LOGS {
        match lost_early(run).await {
            Ok(Some(text)) => {
                return run.fail(Mismatch::new("the last moment of a log", &[F1], text));
            }
            Ok(None) => {}
            // Other phases report errors better.
            Err(_) => return,
        }
    }
}

async fn lost_early(run: &mut Run<'_>) -> Result<Option<String>, Error> {
    let (store, key, limits) = (
        run.store().clone(),
        run.new_key(),
        policy(&[limit(9, WINDOW)], false),
    );
    let mut op = op(Mode::Record, &key, &limits);
    let (mut calls, mut lost) = (0, None);
    // A mock clock moves only while it sleeps.
    let stands_still = store.clock().is_some() && {
        let mut peek = op;
        peek.mode = Mode::Peek;
        let before = by_facts(&store, peek).await?.0.at();
        sleep(Duration::from_millis(1)).await;
        before == by_facts(&store, peek).await?.0.at()
    };
    let start = Instant::now();
    // Appended late in a millisecond, so that an expiry in whole milliseconds is clearly too early.
    let newest = loop {
        let at = by_facts(&store, op).await?.0.at();
        calls += 1;
        if at.as_micros() % 1_000 >= 600 || start.elapsed() > DEADLINE {
            break at;
        }
        if stands_still {
            _ = sleep_on(&store, Duration::from_micros(600)).await;
        }
    };
    if stands_still {
        _ = sleep_on(&store, Duration::from_micros(WINDOW - 1)).await;
    }
    op.mode = Mode::Peek;
    while start.elapsed() < DEADLINE && lost.is_none() {
        run.sweep_now().await;
        let decision = by_facts(&store, op).await?.0;
        calls += 1;
        let age = decision.at().micros_since(newest);
        if age >= WINDOW {
            break;
        }
        if decision.used() == 0 {
            lost = Some(format!(
                "the store has forgotten a log whose newest entry is {age} \u{b5}s old, under {limits}"
            ));
        }
        if stands_still {
            break;
        }
    }
    reset_all(&store, &[op.log]).await;
    run.count(calls + 1);
    Ok(lost)
}
