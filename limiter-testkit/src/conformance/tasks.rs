//! Tasks on the caller's runtime, sleeping, and polling for a limited time.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use limiter_core::{SharedStore, WindowStore as _};
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::poll_times::poll_times;

/// Below this, tokio's timers are too coarse.
const SHORT: Duration = Duration::from_millis(2);

/// Runs `work(task, turn)` for every task, `turns` times each. All tasks start each turn at the same time. Returns the results
/// in the order of tasks, then of turns.
///
/// # Errors
/// If a task panics, or its runtime ends.
pub(crate) async fn run_all<T, F>(
    (tasks, turns): (usize, usize),
    work: impl Fn(usize, usize) -> F + Clone + Send + Sync + 'static,
) -> Result<Vec<Vec<T>>, String>
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
{
    let ready = Arc::new(AtomicUsize::new(0));
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let ready = Arc::clone(&ready);
        let work = work.clone();
        set.spawn(async move {
            let mut results = Vec::new();
            for turn in 0..turns {
                // Without this barrier, the first task would finish before the last one starts.
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < tasks * (turn + 1) {
                    std::thread::yield_now();
                    yield_now().await;
                }
                results.push(work(task, turn).await);
            }
            (task, results)
        });
    }
    let mut all: Vec<Vec<T>> = (0..tasks).map(|_| Vec::new()).collect();
    while let Some(ended) = set.join_next().await {
        let (task, results) =
            ended.map_err(|error| format!("a task of the suite ended early: {error}"))?;
        all[task] = results;
    }
    Ok(all)
}

/// Sleeps in real time.
pub(crate) async fn sleep(duration: Duration) {
    if duration > SHORT {
        return tokio::time::sleep(duration).await;
    }
    let start = Instant::now();
    while start.elapsed() < duration {
        yield_now().await;
    }
}

/// Returns the future's output, or `None` after `limit`.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    timeout(limit, future).await.ok()
}

/// Sleeps by the store's clock if it has its own, otherwise in real time.
///
/// # Errors
/// If the store's clock does not end the sleep, or advances by less meanwhile.
pub(crate) async fn sleep_on(store: &SharedStore, duration: Duration) -> Result<(), String> {
    let Some(clock) = store.clock() else {
        sleep(duration).await;
        return Ok(());
    };
    let most = 10 * duration + Duration::from_secs(10);
    let before = clock.now();
    let slept = within(most, clock.sleep(duration)).await;
    slept.ok_or_else(|| {
        format!(
            "the store's clock did not end a sleep of {duration:?} within {most:?}; a `MockClock` in front of a store must be \
             `auto_advancing`"
        )
    })?;
    let passed = Duration::from_micros(clock.now().micros_since(before));
    // A clock that follows the system's may be slowed.
    if passed + duration / 64 + Duration::from_millis(1) < duration {
        return Err(format!(
            "the store's clock advanced by {passed:?} during a sleep of {duration:?}"
        ));
    }
    Ok(())
}

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DropAfter {
    Polls(usize),
    Micros(u64),
}

impl fmt::Display for DropAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Polls(1) => f.write_str("1 poll"),
            Self::Polls(polls) => write!(f, "{polls} polls"),
            Self::Micros(micros) => write!(f, "{micros} \u{b5}s"),
        }
    }
}

impl DropAfter {
    /// Polls a future for this long. Returns `None` if it has not finished.
    pub(crate) async fn poll<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Polls(polls) => poll_times(polls, future).await,
            Self::Micros(micros) => {
                let end = pin!(sleep(Duration::from_micros(micros)));
                match select(pin!(future), end).await {
                    Either::Left((output, _)) => Some(output),
                    Either::Right(_) => None,
                }
            }
        }
    }
}
