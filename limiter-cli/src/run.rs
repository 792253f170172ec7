//! The commands.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use limiter_cli::generate::{Shape, generate as generate_trace};
use limiter_cli::jsonl::JsonLines;
use limiter_cli::plot::{Collector, View, draw};
use limiter_cli::replay::{Answer, Immediate, Observer, replay as replay_trace};
use limiter_cli::summary::{Summary, print};
use limiter_cli::trace::{Malformed, Row, Trace};
use limiter_core::Policy;
use limiter_memory::MemoryStore;

use crate::args::{Generate, Output, Replay, Store};
use crate::input::Input;
use crate::progress::WithProgress;

/// The command line asks for something that cannot be.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

pub(crate) fn replay(args: &Replay) -> anyhow::Result<()> {
    let policy = Policy::new(args.limits.iter().copied()).map_err(|error| Usage(error.to_string()))?;
    let policy = policy.counting(args.count.into());
    let mut input = Input::open(args.file.as_deref(), args.plot.is_some())?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut summary = Summary::new(&policy);
    let start = Instant::now();
    match args.output {
        Output::Summary => pass(args, &mut input, &policy, "replaying", &mut summary)?,
        Output::Jsonl => {
            let mut both = Both(&mut summary, JsonLines(&mut out));
            pass(args, &mut input, &policy, "replaying", &mut both)?;
        }
    }
    let elapsed = start.elapsed();
    if args.output == Output::Summary {
        print(&mut out, &summary, &policy, elapsed)?;
    }
    out.flush()?;
    if let Some(first) = &summary.first_skipped {
        eprintln!("limiter: {}: skipped {} malformed rows, the first: {first}", input.name, summary.skipped);
    }
    match &args.plot {
        Some(path) => plot(args, input, &policy, &summary, path),
        None => Ok(()),
    }
}

/// Replays once more, now that the key and the span of time to draw are known.
fn plot(args: &Replay, input: Input, policy: &Policy, summary: &Summary, path: &Path) -> anyhow::Result<()> {
    let view = View::new(summary, policy, args.key.as_deref().map(str::as_bytes)).map_err(Usage)?;
    let mut input = input.rewind()?;
    let mut collector = Collector::new(view, policy);
    pass(args, &mut input, policy, "plotting", &mut collector)?;
    let svg = draw(&collector.finish(), policy)?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("limiter: wrote {}", path.display());
    Ok(())
}

fn pass(
    args: &Replay,
    input: &mut Input,
    policy: &Policy,
    what: &'static str,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    let (name, length) = (input.name.clone(), input.length());
    let mut decider = match args.store {
        Store::Memory => Immediate(MemoryStore::new()),
    };
    let mut observer = WithProgress::new(observer, what, length);
    let mut trace = Trace::new(input, args.format.map(Into::into)).with_context(|| name.clone())?;
    replay_trace(&mut trace, policy, &mut decider, args.skip_invalid, &mut observer).map_err(|error| {
        // Output that nobody reads any more is not the trace's fault.
        if error.is::<io::Error>() { error } else { error.context(name) }
    })
}

struct Both<'a, A, B>(&'a mut A, B);

impl<A: Observer, B: Observer> Observer for Both<'_, A, B> {
    fn row(&mut self, row: &Row<'_>, answer: &Answer) -> anyhow::Result<()> {
        self.0.row(row, answer)?;
        self.1.row(row, answer)
    }

    fn skipped(&mut self, malformed: Malformed) {
        self.0.skipped(malformed.clone());
        self.1.skipped(malformed);
    }
}

pub(crate) fn generate(args: &Generate) -> anyhow::Result<()> {
    let Generate { rows, keys, rate, skew, seed } = *args;
    let written = generate_trace(Shape { rows, keys, rate, skew, seed }, io::stdout().lock());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Usage(error.to_string()).into(),
        _ => error.into(),
    })
}
