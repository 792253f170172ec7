//! The command `load`: drives a store as a service would, and checks from the outside how much it admits.

mod args;
mod calls;
mod worst_window;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use limiter_core::{Limiter, SharedStore};
use limiter_memory::MemoryStore;
use limiter_wrappers::Guarded;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinSet;

use crate::message::{OUTPUT, message};
use crate::store::{Logs, failed};
use args::Outage;
use calls::{Calls, TimedCall};
use worst_window::Admissions;

pub use args::Load;

/// Runs the command. If interrupted, ends the process with the exit status that shells expect.
///
/// # Errors
/// [`UsageError`](crate::usage_error::UsageError) for invalid arguments. If connecting or writing the output fails.
/// Errors of decisions are counted, not returned.
pub fn run(args: &Load) -> anyhow::Result<()> {
    let policy = args.policy.policy()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let name = format!(
        "limiter-load:{:016x}",
        RandomState::new().hash_one(std::process::id())
    );
    runtime.block_on(async { drive(args, Limiter::new(name, policy, open(args).await?)).await })
}

/// Returns the store, in the recommended wrappers if a behaviour during outages is given.
async fn open(args: &Load) -> anyhow::Result<SharedStore> {
    let Some(url) = &args.store else {
        return Ok(Arc::new(MemoryStore::new()));
    };
    let logs = Logs::open(url, limiter_redis::DEFAULT_PREFIX).await?;
    logs.create().await?;
    let store = logs.shared();
    let report = |outage: limiter_wrappers::Outage<'_>| match outage {
        limiter_wrappers::Outage::Began { error, .. } => {
            message(format_args!("store unavailable: {error}"));
        }
        limiter_wrappers::Outage::Ended { calls, .. } => {
            message(format_args!("store available after {calls} calls"));
        }
        _ => {}
    };
    let Some(choice) = args.on_outage else {
        return Ok(store);
    };
    let stack = Guarded::builder(store);
    let store = match choice {
        Outage::Open => stack.fail_open(),
        Outage::Closed => stack.fail_closed(),
        Outage::Fallback => stack.fallback(MemoryStore::new()),
        Outage::Error => stack.or_error(),
    };
    Ok(Arc::new(store.on_outage(report)))
}

/// Makes the calls and prints their figures.
async fn drive(args: &Load, limiter: Limiter<SharedStore>) -> anyhow::Result<()> {
    const MAX_QUEUED: usize = 1_000;
    let calls = Arc::new(Calls::new(args, limiter.clone()));
    let mut figures = Figures::new(Admissions::new(limiter.policy()));
    let (sender, mut ended) = mpsc::channel(MAX_QUEUED);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..args.tasks {
        tasks.spawn(Arc::clone(&calls).make(sender.clone()));
    }
    drop(sender);
    let interrupted = tokio::select! {
        () = figures.collect(&mut ended) => false,
        Ok(()) = tokio::signal::ctrl_c() => true,
    };
    let elapsed = start.elapsed();
    tasks.shutdown().await;
    figures.collect(&mut ended).await;
    // Remove the logs even if the output fails.
    remove(&limiter, figures.admissions.times.keys()).await;
    writeln!(io::stdout(), "{:#}", figures.to_json(elapsed)).context(OUTPUT)?;
    if interrupted {
        std::process::exit(130);
    }
    Ok(())
}

/// Removes the logs. If that fails, prints a message: the logs expire anyway.
async fn remove(limiter: &Limiter<SharedStore>, keys: impl Iterator<Item = &u32>) {
    const CONCURRENCY: usize = 64;
    let keys = stream::iter(keys).map(Ok);
    let reset =
        keys.try_for_each_concurrent(CONCURRENCY, async |key| limiter.reset(*key).await.map(drop));
    if let Err(error) = reset.await {
        message(format_args!(
            "the load's keys remain until they expire: {:#}",
            failed(error)
        ));
    }
}

/// Counts and latencies of the calls.
#[derive(Debug)]
struct Figures {
    allowed: u64,
    denied: u64,
    errors: BTreeMap<&'static str, u64>,
    latencies: Histogram<u64>,
    admissions: Admissions,
}

impl Figures {
    fn new(admissions: Admissions) -> Self {
        // Three significant digits, no maximum.
        let latencies =
            Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are valid"));
        Self {
            allowed: 0,
            denied: 0,
            errors: BTreeMap::new(),
            latencies,
            admissions,
        }
    }

    /// Collects calls until all tasks have ended. Cancel safe.
    async fn collect(&mut self, ended: &mut Receiver<TimedCall>) {
        while let Some(call) = ended.recv().await {
            // This cannot fail, because the histogram has no maximum.
            let _ = self
                .latencies
                .record(u64::try_from(call.latency.as_micros()).unwrap_or(u64::MAX));
            match &call.decision {
                Ok(decision) if decision.is_allowed() => {
                    // A repeated attempt is decided later than its entry was appended. A unit of a block is admitted when it is spent.
                    let entry = decision.appended_at();
                    let entry = entry.filter(|_| decision.limit().lease().is_none());
                    let at = entry.unwrap_or(decision.at());
                    self.allowed += 1;
                    self.admissions.add(call.key, at.as_micros());
                }
                Ok(_) => self.denied += 1,
                Err(error) => *self.errors.entry(error.kind().as_str()).or_default() += 1,
            }
        }
    }

    fn to_json(&self, elapsed: Duration) -> Value {
        let latency = |share| self.latencies.value_at_quantile(share);
        let (units, limit) = self.admissions.worst;
        json!({
            "allowed": self.allowed,
            "denied": self.denied,
            "errors": self.errors,
            "decisions_per_s": ((self.allowed + self.denied) as f64 / elapsed.as_secs_f64().max(1e-9)).round(),
            "latency_us": { "p50": latency(0.5), "p99": latency(0.99), "p999": latency(0.999), "max": latency(1.0) },
            "worst_window": { "units": units, "limit": limit.to_string(), "within_limit": units <= limit.max() },
        })
    }
}
