//! The command `load`: drives a store as a service would, and checks from the outside how much it admits.

mod admissions;
mod args;
mod interrupt;
mod report;
mod tally;
mod tasks;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::{Limiter, SharedStore, WindowStore};
use limiter_memory::MemoryStore;
use limiter_wrappers::Stack;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::json::write_line;
use crate::message::{OUTPUT, message};
use crate::options::Output;
use crate::progress::bar;
use crate::redis::{connect, failed};
use crate::usage_error::UsageError;
use admissions::Admissions;
use args::Store;
use interrupt::interrupted;
use report::Figures;
use tally::Tally;
use tasks::Tasks;

pub use args::Load;

/// The limiter's name.
const NAME: &str = "load";

/// Runs the command. If interrupted, ends the process with the exit status that shells expect.
///
/// # Errors
/// [`UsageError`] for invalid arguments. Any error of connecting and of the output. Errors of decisions are counted,
/// not returned.
pub fn run(args: &Load) -> anyhow::Result<()> {
    let policy = args.policy.policy()?;
    if let Some(limit) = policy.limits().iter().find(|limit| args.cost > limit.max()) {
        return Err(UsageError(format!("expected a cost of at most {}, found {}", limit.max(), args.cost)).into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let status = runtime.block_on(async {
        let limiter = Limiter::new(NAME, policy, open(args).await?);
        drive(args, limiter).await
    })?;
    match status {
        None => Ok(()),
        Some(status) => std::process::exit(status),
    }
}

async fn open(args: &Load) -> anyhow::Result<SharedStore> {
    Ok(match &args.store {
        Store::Memory => stacked(args, MemoryStore::new()),
        Store::Redis(url) => {
            let random = || format!("limiter-load:{:016x}", RandomState::new().hash_one(std::process::id()));
            stacked(args, connect(url, &args.prefix.clone().unwrap_or_else(random)).await?)
        }
    })
}

fn stacked(args: &Load, store: impl WindowStore) -> SharedStore {
    let report = |outage: limiter_wrappers::Outage<'_>| match outage {
        limiter_wrappers::Outage::Began { error } => message(format_args!("the store is away: {error}")),
        limiter_wrappers::Outage::Ended { calls } => message(format_args!("the store is back, after {calls} calls")),
        _ => {}
    };
    match (args.stack, args.outage) {
        (args::Stack::Plain, _) => Arc::new(store),
        (args::Stack::Recommended, args::Outage::Open) => Arc::new(Stack::new(store).fail_open().on_outage(report)),
        (args::Stack::Recommended, args::Outage::Closed) => Arc::new(Stack::new(store).fail_closed().on_outage(report)),
        (args::Stack::Recommended, args::Outage::Fallback) => {
            Arc::new(Stack::new(store).fallback(MemoryStore::new()).on_outage(report))
        }
        (args::Stack::Recommended, args::Outage::Error) => Arc::new(Stack::new(store).or_error()),
    }
}

/// Runs the load and prints its figures. Returns an exit status if it was interrupted.
async fn drive(args: &Load, limiter: Limiter<SharedStore>) -> anyhow::Result<Option<i32>> {
    let mut out = io::stdout().lock();
    let mut admissions = Admissions::new(limiter.policy(), args.cost);
    let mut total = Tally::new();
    let mut tasks = Tasks::start(args, limiter.clone())?;
    let start = Instant::now();
    let watched = watch(args, &mut tasks, &mut admissions, &mut total, &mut out).await;
    let elapsed = start.elapsed();
    // Remove the logs even if the output failed.
    tasks.stop();
    if args.prefix.is_none() {
        remove(&limiter, &tasks).await;
    }
    let status = watched?;
    let worst = admissions.worst();
    let figures = Figures::whole(&total, elapsed, worst);
    match args.output {
        Output::Summary => figures.write_table(&mut out, limiter.policy(), worst),
        Output::Jsonl => write_line(&mut out, &figures),
    }
    .context(OUTPUT)?;
    Ok(status)
}

/// Collects the results of every second until the tasks have ended or are interrupted.
async fn watch(
    args: &Load,
    tasks: &mut Tasks,
    admissions: &mut Admissions,
    total: &mut Tally,
    out: &mut impl Write,
) -> anyhow::Result<Option<i32>> {
    let second = Duration::from_secs(1);
    let bar = bar("load", Some(args.seconds.ceil() as u64));
    let mut seconds = interval_at(Instant::now() + second, second);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut interrupt = std::pin::pin!(interrupted());
    let mut number = 0;
    loop {
        let (ended, status) = tokio::select! {
            _ = seconds.tick() => (false, None),
            ended = tasks.finished() => (true, ended.map(|()| None)?),
            status = &mut interrupt => (true, Some(status)),
        };
        if ended {
            tasks.stop();
        }
        let mut tally = tasks.take();
        admissions.extend(std::mem::take(&mut tally.admissions));
        number += 1;
        if !ended && args.output == Output::Jsonl {
            write_line(out, &Figures::second(&tally, number)).context(OUTPUT)?;
        }
        total.add(tally);
        if ended {
            bar.finish_and_clear();
            return Ok(status);
        }
        bar.set_position(number);
        let errors: u64 = total.errors.values().sum();
        bar.set_message(format!("{} allowed, {} denied, {errors} errors", total.allowed, total.denied));
    }
}

/// Removes the logs. If that fails, prints a message: the logs expire anyway.
async fn remove(limiter: &Limiter<SharedStore>, tasks: &Tasks) {
    const CONCURRENCY: usize = 64;
    let keys = stream::iter(tasks.used_keys()).map(Ok);
    let reset = keys.try_for_each_concurrent(CONCURRENCY, |key| async move { limiter.reset(&*key).await.map(drop) });
    if let Err(error) = reset.await {
        message(format_args!("the keys of the load remain until they expire: {:#}", failed(error)));
    }
}
