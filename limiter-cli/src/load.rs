//! The command `load`: drives a store as a service would, and checks from the outside how much it admits.

mod admissions;
mod args;
mod report;
mod tally;
mod tasks;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::{Limiter, SharedStore, WindowStore};
use limiter_memory::MemoryStore;
use limiter_wrappers::Stack;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::interrupt::interrupted;
use crate::json::write_line;
use crate::message::message;
use crate::options::{Output, Store};
use crate::progress::bar;
use crate::redis::{connect, failed};
use crate::usage_error::UsageError;
use admissions::Admissions;
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
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let bar = bar("load", Some(args.seconds.ceil() as u64));
    let mut seconds = interval_at(start + second, second);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut interrupt = std::pin::pin!(interrupted());
    let mut status = None;
    for number in 1.. {
        let ended = tokio::select! {
            _ = seconds.tick() => false,
            ended = tasks.finished() => ended.map(|()| true)?,
            Some(interrupted) = &mut interrupt, if status.is_none() => {
                status = Some(interrupted);
                tasks.stop();
                true
            }
        };
        let mut tally = tasks.take();
        admissions.extend(std::mem::take(&mut tally.admissions));
        if !ended && args.output == Output::Jsonl {
            write_line(&mut out, &Figures::second(&tally, number))?;
        }
        total.add(tally);
        if ended {
            break;
        }
        bar.set_position(number);
        let errors: u64 = total.errors.values().sum();
        bar.set_message(format!("{} allowed, {} denied, {errors} errors", total.allowed, total.denied));
    }
    let elapsed = start.elapsed();
    bar.finish_and_clear();
    if args.prefix.is_none() {
        remove(&limiter, &tasks).await;
    }
    let worst = admissions.worst();
    let figures = Figures::whole(&total, elapsed, worst);
    match args.output {
        Output::Summary => figures.write_table(&mut out, limiter.policy(), worst)?,
        Output::Jsonl => write_line(&mut out, &figures)?,
    }
    out.flush()?;
    Ok(status)
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
