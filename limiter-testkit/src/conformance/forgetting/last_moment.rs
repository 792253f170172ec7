//! Reads a log until the very microsecond from which the store may forget it.

use std::time::{Duration, Instant};

use limiter_core::store::Mode;
use limiter_core::{Error, WindowStore as _};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::suite::run::{Run, op, reset_all};
use crate::conformance::tasks::sleep_on;
use crate::policies::{limit, policy};
use crate::sentence::Sentence::F1;

/// The window, in microseconds.
const WINDOW: u64 = 3_000;
/// The number of logs. The thread may be preempted at the moment that matters.
const LOGS: usize = 16;
/// The time limit for one log. A slow store may never be read at the right time.
const DEADLINE: Duration = Duration::from_millis(50);

pub(super) async fn run(run: &mut Run<'_>) {
    let store = run.store().clone();
    // Only sleeps advance a mock clock.
    let stands_still = store.clock().is_some_and(|clock| {
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(1));
        clock.now() == before
    });
    for _ in 0..LOGS {
        match lost_early(run, stands_still).await {
            Ok(None) => {}
            Ok(Some(text)) => {
                return run.fail(Mismatch::new("the last moment of a log", &[F1], text));
            }
            // Other phases report errors better.
            Err(_) => return,
        }
    }
}

/// Returns a description if the store loses a log early.
async fn lost_early(run: &mut Run<'_>, stands_still: bool) -> Result<Option<String>, Error> {
    let store = run.store().clone();
    let key = run.new_key();
    let limits = policy(&[limit(9, WINDOW)], false);
    let mut op = op(Mode::Record, &key, &limits);
    let start = Instant::now();
    let mut calls = 0;
    let mut lost = None;
    // Appended late in a millisecond, so that an expiry in whole milliseconds is clearly too early.
    let newest = loop {
        let at = by_facts(&store, op).await?.0.at();
        calls += 1;
        if at.as_micros() % 1_000 >= 600 || start.elapsed() > DEADLINE {
            break at;
        }
        if stands_still {
            _ = sleep_on(&store, Duration::from_micros(100)).await;
        }
    };
    op.mode = Mode::Peek;
    if stands_still {
        _ = sleep_on(&store, Duration::from_micros(WINDOW - 1)).await;
    }
    while start.elapsed() < DEADLINE && lost.is_none() {
        run.sweep_now().await;
        let decision = by_facts(&store, op).await?.0;
        calls += 1;
        let age = decision.at().micros_since(newest);
        if age >= WINDOW {
            break;
        }
        if stands_still {
            _ = sleep_on(&store, Duration::from_micros(1)).await;
        }
        lost = (decision.used() == 0).then(|| {
            format!("the store has forgotten a log whose newest entry is {age} \u{b5}s old, under {limits}")
        });
    }
    reset_all(&store, &[op.log]).await;
    run.count(calls + 1);
    Ok(lost)
}
