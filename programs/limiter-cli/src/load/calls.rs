//! The tasks that call the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::{Decision, Error, Limiter, SharedStore};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until};

use super::args::Load;

/// A call that ended.
#[derive(Debug)]
pub(super) struct TimedCall {
    pub(super) key: u32,
    pub(super) latency: Duration,
    pub(super) decision: Result<Decision, Error>,
}

/// The calls that all tasks make together.
#[derive(Debug)]
pub(super) struct Calls {
    limiter: Limiter<SharedStore>,
    keys: u32,
    rate: Option<u32>,
    start: Instant,
    length: Duration,
    /// The number of calls begun.
    begun: AtomicU64,
}

impl Calls {
    pub(super) fn new(args: &Load, limiter: Limiter<SharedStore>) -> Self {
        let length = Duration::from_secs(args.seconds.into());
        Self {
            limiter,
            keys: args.keys,
            rate: args.rate,
            start: Instant::now(),
            length,
            begun: AtomicU64::new(0),
        }
    }

    /// Makes one call after the other until the end, and sends their results.
    pub(super) async fn make(self: Arc<Self>, results: Sender<TimedCall>) {
        loop {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            // Without a rate, a call is due when a task is free.
            let due = self
                .rate
                .map(|rate| Duration::from_secs_f64(number as f64 / f64::from(rate)));
            if due.unwrap_or_default().max(self.start.elapsed()) >= self.length {
                return;
            }
            if let Some(due) = due {
                sleep_until(self.start + due).await;
            }
            let key = (number % u64::from(self.keys)) as u32;
            let before = Instant::now();
            let decision = self.limiter.acquire(key).await;
            let latency = before.elapsed();
            // The receiver outlives the tasks.
            let _ = results
                .send(TimedCall {
                    key,
                    latency,
                    decision,
                })
                .await;
        }
    }
}
