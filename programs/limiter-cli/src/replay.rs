//! The command `replay`: runs a trace's rows through a limiter and shows the decisions.

mod args;
mod input;
mod json_lines;
mod plot;
mod rows;
mod summary;
mod table;

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use limiter_core::{Limiter, Policy};
use limiter_memory::MemoryStore;

use crate::message::{OUTPUT, message};
use crate::options::Output;
use crate::progress::bar;
use crate::trace::{Row, Trace};
use crate::usage_error::UsageError;
use input::Input;
use plot::{Collector, View};
use rows::{RowResult, Skipped};
use summary::Summary;

pub use args::Replay;

/// The name of the limiter.
const NAME: &str = "replay";

/// Servers log requests when they end, so rows are late by as long as a request took. Longer delays are files in a wrong order.
const LONGEST_DELAY: Duration = Duration::from_secs(600);
/// The late rows that a trace may have, or else a hundredth of its rows. With more, its decisions are no answer.
const MAX_LATE: u64 = 100;

/// Runs the command.
///
/// # Errors
/// [`UsageError`] for invalid arguments. If reading the trace or writing the output fails.
pub fn run(args: &Replay) -> anyhow::Result<()> {
    let policy = args.policy.policy()?;
    let mut input = Input::open(args.file.as_deref(), args.plot.is_some())?;
    let (summary, skipped) = replay(args, &policy, &mut input)?;
    if let Some(path) = &args.plot {
        draw(args, &mut input, &policy, &summary, path)?;
    }
    let name = &input.name;
    anyhow::ensure!(
        skipped <= summary.rows,
        "{name}: more than half of the rows are malformed"
    );
    let Summary { late, delay, .. } = summary;
    let text = format!(
        "{name}: {late} rows come more than the shortest window after a newer row of their key, up to {delay:?}, and count at its time"
    );
    anyhow::ensure!(
        delay <= LONGEST_DELAY || late <= MAX_LATE.max(summary.rows / 100),
        "{text}; give rotated files in order, the oldest first"
    );
    if late > 0 {
        message(text);
    }
    Ok(())
}

/// Replays the trace and prints the decisions or the summary. Returns the summary and the number of skipped rows.
fn replay(args: &Replay, policy: &Policy, input: &mut Input) -> anyhow::Result<(Summary, u64)> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut summary = Summary::new(policy);
    let start = Instant::now();
    let skipped = pass(args, policy, input, "replaying", |row, result| {
        summary.add(row, result);
        match args.output {
            Output::Summary => Ok(()),
            Output::Jsonl => Ok(json_lines::write(&mut out, row, result)?),
        }
    })?;
    let elapsed = start.elapsed();
    if args.output == Output::Summary {
        table::print(&mut out, &summary, skipped.count, policy, elapsed).context(OUTPUT)?;
    }
    out.flush().context(OUTPUT)?;
    if let Some(first) = &skipped.first {
        message(format_args!(
            "{}: skipped {} malformed rows, the first: {first}",
            input.name, skipped.count
        ));
    }
    Ok((summary, skipped.count))
}

/// Replays the trace a second time, now that the key and the time span of the plot are known.
fn draw(
    args: &Replay,
    input: &mut Input,
    policy: &Policy,
    summary: &Summary,
    path: &Path,
) -> anyhow::Result<()> {
    let view = View::new(summary, policy, args.key.as_deref()).map_err(UsageError)?;
    input.rewind()?;
    let mut collector = Collector::new(view, policy)?;
    pass(args, policy, input, "plotting", |row, result| {
        collector.add(row, result)
    })?;
    let svg = plot::draw(&collector.finish()?, policy)?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    message(format_args!("wrote {}", path.display()));
    Ok(())
}

/// Replays the trace in memory, and calls `each` with every row in order.
fn pass(
    args: &Replay,
    policy: &Policy,
    input: &mut Input,
    what: &'static str,
    each: impl FnMut(&Row<'_>, &RowResult) -> anyhow::Result<()>,
) -> anyhow::Result<Skipped> {
    let name = input.name.clone();
    let bar = bar(what, input.length());
    let mut trace = Trace::new(bar.wrap_read(input), args.format).with_context(|| name.clone())?;
    let limiter = Limiter::new(NAME, policy.clone(), MemoryStore::new());
    let result = rows::replay(args, &mut trace, &limiter, each);
    bar.finish_and_clear();
    result.map_err(|error| {
        // An I/O error comes from the output, often a closed pipe, so do not blame the trace.
        let is_of_output = error.is::<io::Error>();
        error.context(if is_of_output {
            OUTPUT.to_owned()
        } else {
            name
        })
    })
}
