//! The tasks that make the decisions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::{Limiter, SharedStore, internal};
use rand::SeedableRng;
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;
use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

use super::args::Load;
use super::tally::Tally;
use crate::options::{positive, zipf};
use crate::usage_error::UsageError;

/// The state shared by the tasks.
#[derive(Debug)]
struct Shared {
    limiter: Limiter<SharedStore>,
    cost: u64,
    start: Instant,
    end: Instant,
    /// The time between two decisions of any tasks, in seconds.
    gap: Option<f64>,
    next: AtomicU64,
    keys: Zipf<f64>,
    /// Which keys have been used.
    used: Vec<AtomicBool>,
    /// One per task. Only that task locks it, except once a second when the results are collected.
    results: Vec<Mutex<Tally>>,
}

/// The running tasks.
#[derive(Debug)]
pub(super) struct Tasks {
    shared: Arc<Shared>,
    running: JoinSet<()>,
}

impl Tasks {
    pub(super) fn start(args: &Load, limiter: Limiter<SharedStore>) -> anyhow::Result<Self> {
        let seconds = positive(args.seconds, "seconds")?;
        let gap = args.rate.map(|rate| positive(rate, "a rate").map(|rate| 1.0 / rate)).transpose()?;
        let keys = zipf(args.keys.into(), args.skew)?;
        let start = Instant::now();
        let end = Duration::try_from_secs_f64(seconds).ok().and_then(|length| start.checked_add(length));
        let end = end.ok_or_else(|| UsageError(format!("expected fewer seconds, found {seconds}")))?;
        let shared = Arc::new(Shared {
            limiter,
            cost: args.cost,
            start,
            end,
            gap,
            next: AtomicU64::new(0),
            keys,
            used: (0..=args.keys).map(|_| AtomicBool::new(false)).collect(),
            results: (0..args.tasks).map(|_| Mutex::new(Tally::new())).collect(),
        });
        let mut running = JoinSet::new();
        for task in 0..args.tasks {
            running.spawn(Arc::clone(&shared).run(task));
        }
        Ok(Self { shared, running })
    }

    /// Waits until all tasks have ended. Cancel safe.
    pub(super) async fn finished(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.running.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Returns the results since the last call.
    pub(super) fn take(&self) -> Tally {
        let mut all = Tally::new();
        self.shared.results.iter().for_each(|results| all.add(std::mem::replace(&mut *lock(results), Tally::new())));
        all
    }

    /// Stops all tasks at once and drops the decisions in flight.
    pub(super) fn stop(&mut self) {
        self.running.abort_all();
    }

    /// Returns the keys that have been used.
    pub(super) fn used_keys(&self) -> impl Iterator<Item = String> {
        let used = self.shared.used.iter().enumerate().filter(|(_, used)| used.load(Ordering::Relaxed));
        used.map(|(key, _)| name(key))
    }
}

impl Shared {
    async fn run(self: Arc<Self>, task: u32) {
        let mut random = Pcg64Mcg::seed_from_u64(u64::from(task));
        loop {
            if let Some(gap) = self.gap {
                let due = self.next.fetch_add(1, Ordering::Relaxed) as f64 * gap;
                let due = Duration::try_from_secs_f64(due).ok().and_then(|due| self.start.checked_add(due));
                match due.filter(|due| *due < self.end) {
                    Some(due) => sleep_until(due).await,
                    None => return,
                }
            }
            // A store that answers at once never yields to the other tasks.
            consume_budget().await;
            if Instant::now() >= self.end {
                return;
            }
            let key = self.keys.sample(&mut random) as usize;
            self.used[key].store(true, Ordering::Relaxed);
            let name = name(key);
            let before = Instant::now();
            let decision = self.limiter.acquire(name.as_str()).cost(self.cost).await;
            let latency = before.elapsed();
            let mut tally = lock(&self.results[task as usize]);
            match decision {
                Ok(decision) => {
                    tally.decided(decision.allowed(), latency);
                    if decision.allowed() {
                        // A repeated attempt is decided later than its entry was appended.
                        let at = internal::entry_time(&decision).unwrap_or(decision.at());
                        tally.admissions.push((key as u32, at.as_micros()));
                    }
                }
                Err(error) => tally.failed(error.kind().as_str(), latency),
            }
        }
    }
}

fn name(key: usize) -> String {
    format!("key-{key}")
}

fn lock(results: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}
