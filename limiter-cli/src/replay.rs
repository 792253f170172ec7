//! The command `replay`: runs the rows of a trace through a limiter and shows the decisions.
//!
//! [`memory`] and [`redis`] decide on the rows and report every [`RowResult`] to an
//! [`Observer`]: [`summary`], [`json_lines`] or [`plot`].

mod args;
mod input;
pub mod json_lines;
pub mod memory;
pub mod plot;
mod progress;
#[cfg(feature = "redis")]
pub mod redis;
pub mod row_result;
pub mod summary;
mod table;

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use limiter_core::{Limiter, Policy};
use limiter_memory::MemoryStore;

use crate::options::Store;
use crate::trace::{Malformed, Row, Trace};
use crate::usage_error::UsageError;
use args::Output;
use input::Input;
use json_lines::JsonLines;
use plot::{Collector, View};
use progress::WithProgress;
#[cfg(feature = "redis")]
use redis::RedisRun;
use row_result::{LIMITER_NAME, Observer, RowResult};
use summary::Summary;

pub use args::Replay;

/// Runs the command.
///
/// # Errors
/// [`UsageError`] for invalid arguments. Any error of the trace, the store and the output.
pub fn run(args: &Replay) -> anyhow::Result<()> {
    let policy = Policy::new(args.limits.iter().copied()).map_err(|error| UsageError(error.to_string()))?;
    let policy = policy.with_counting(args.count.into());
    let input = Input::open(args.file.as_deref(), args.plot.is_some())?;
    let mut logs = Logs::open(&args.store, &policy)?;
    let result = replay_in(args, &policy, input, &mut logs);
    // Remove the logs even if the replay failed.
    match (result, logs.remove()) {
        (Ok(()), removed) => removed,
        (Err(error), removed) => {
            if let Err(also) = removed {
                eprintln!("limiter: {also:#}");
            }
            Err(error)
        }
    }
}

fn replay_in(args: &Replay, policy: &Policy, mut input: Input, logs: &mut Logs) -> anyhow::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut summary = Summary::new(policy);
    let start = Instant::now();
    match args.output {
        Output::Summary => pass(args, logs, &mut input, "replaying", &mut summary)?,
        Output::Jsonl => {
            let mut tee = Tee(&mut summary, JsonLines(&mut out));
            pass(args, logs, &mut input, "replaying", &mut tee)?;
        }
    }
    let elapsed = start.elapsed();
    if args.output == Output::Summary {
        table::print(&mut out, &summary, policy, elapsed)?;
    }
    out.flush()?;
    if let Some(first) = &summary.first_skipped {
        eprintln!("limiter: {}: skipped {} malformed rows, the first: {first}", input.name, summary.skipped);
    }
    match &args.plot {
        Some(path) => draw(args, logs, input, policy, &summary, path),
        None => Ok(()),
    }
}

/// Replays the trace a second time, now that the key and the time span of the plot are known.
fn draw(
    args: &Replay,
    logs: &mut Logs,
    input: Input,
    policy: &Policy,
    summary: &Summary,
    path: &Path,
) -> anyhow::Result<()> {
    let view = View::new(summary, policy, args.key.as_deref().map(str::as_bytes)).map_err(UsageError)?;
    let mut input = input.rewind()?;
    let mut collector = Collector::new(view, policy);
    logs.remove()?;
    pass(args, logs, &mut input, "plotting", &mut collector)?;
    let svg = plot::draw(&collector.finish(), policy)?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("limiter: wrote {}", path.display());
    Ok(())
}

/// The store of the replay.
enum Logs {
    Memory(Limiter<MemoryStore>),
    #[cfg(feature = "redis")]
    Redis(Box<RedisRun>),
}

impl Logs {
    fn open(store: &Store, policy: &Policy) -> anyhow::Result<Self> {
        Ok(match store {
            Store::Memory => Self::Memory(Limiter::new(LIMITER_NAME, policy.clone(), MemoryStore::new())),
            #[cfg(feature = "redis")]
            Store::Redis(url) => Self::Redis(RedisRun::connect(url, policy)?.into()),
        })
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Memory(limiter) => {
                *limiter = Limiter::new(LIMITER_NAME, limiter.policy().clone(), MemoryStore::new());
            }
            #[cfg(feature = "redis")]
            Self::Redis(run) => run.remove()?,
        }
        Ok(())
    }
}

fn pass(
    args: &Replay,
    logs: &mut Logs,
    input: &mut Input,
    what: &'static str,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    let (name, length) = (input.name.clone(), input.length());
    let mut observer = WithProgress::new(observer, what, length);
    let mut trace = Trace::new(input, args.format.map(Into::into)).with_context(|| name.clone())?;
    let skip = args.skip_invalid;
    let result = match logs {
        Logs::Memory(limiter) => memory::replay(&mut trace, limiter, skip, &mut observer),
        #[cfg(feature = "redis")]
        Logs::Redis(run) => redis::replay(&mut trace, run, skip, &mut observer),
    };
    result.map_err(|error| {
        // An I/O error comes from the output, often a closed pipe, so do not blame the trace.
        if error.is::<io::Error>() { error } else { error.context(name) }
    })
}

/// Passes every row to two observers.
struct Tee<'a, A, B>(&'a mut A, B);

impl<A: Observer, B: Observer> Observer for Tee<'_, A, B> {
    fn row(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        self.0.row(row, result)?;
        self.1.row(row, result)
    }

    fn skipped(&mut self, malformed: Malformed) {
        self.0.skipped(malformed.clone());
        self.1.skipped(malformed);
    }
}
