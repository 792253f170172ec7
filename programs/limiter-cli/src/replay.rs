//! The command `replay`: runs a trace's rows through a limiter and shows the decisions.

mod args;
mod json_lines;
mod plot;
mod summary;
mod table;

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use limiter_core::Policy;

use crate::message::{OUTPUT, message};
use crate::options::Output;
use crate::pass::{Input, Passed, pass};
use crate::usage_error::UsageError;
use plot::{Collector, View};
use summary::Summary;

pub use args::Replay;

/// Runs the command.
///
/// # Errors
/// [`UsageError`] for invalid arguments. If reading the trace or writing the output fails.
pub fn run(args: &Replay) -> anyhow::Result<()> {
    let policy = args.policy.policy()?;
    let mut input = Input::open(args.trace.file.as_deref(), args.plot.is_some())?;
    let (summary, passed) = replay(args, &policy, &mut input)?;
    if let Some(path) = &args.plot {
        draw(args, &mut input, &policy, &summary, path)?;
    }
    passed.check(&input.name)
}

/// Replays the trace and prints the decisions or the summary. Returns the summary.
fn replay(args: &Replay, policy: &Policy, input: &mut Input) -> anyhow::Result<(Summary, Passed)> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut summary = Summary::new(policy);
    let start = Instant::now();
    let passed = pass(&args.trace, policy, input, "replaying", |row, result| {
        summary.add(row, result);
        match args.output {
            Output::Summary => Ok(()),
            Output::Jsonl => Ok(json_lines::write(&mut out, row, result)?),
        }
    })?;
    let elapsed = start.elapsed();
    if args.output == Output::Summary {
        table::print(&mut out, &summary, passed.skipped, policy, elapsed).context(OUTPUT)?;
    }
    out.flush().context(OUTPUT)?;
    Ok((summary, passed))
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
    pass(&args.trace, policy, input, "plotting", |row, result| {
        collector.add(row, result)
    })?;
    let svg = plot::draw(&collector.finish()?, policy)?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    message(format_args!("wrote {}", path.display()));
    Ok(())
}
