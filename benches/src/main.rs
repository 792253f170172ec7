//! Measures all libraries in turns and writes the tables and plots.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use limiter_benches::measure::{Effort, measure};
use limiter_benches::record::{Kind, Record};
use limiter_benches::report::Results;
use limiter_benches::scenario::SCENARIOS;
use limiter_benches::{admission, bytes, documents, flood, http, remote, surface};

#[global_allocator]
static ALLOCATOR: bytes::Counting = bytes::Counting;

/// Compares the limiter with its peers in time, over-admission and memory. Prints Markdown to standard output.
#[derive(Debug, Parser)]
struct Args {
    /// Finish within three minutes (the default).
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Run longer turns, and more of them.
    #[arg(long)]
    full: bool,
    /// Measure only scenarios whose names contain TEXT, and write no files.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure only times, and write no files.
    #[arg(long)]
    times: bool,
    /// Measure the Redis group instead, on a redis-server that this program starts (`LIMITER_REDIS_SERVER` selects
    /// the binary). Takes two minutes, or longer with --full.
    #[arg(long, conflicts_with = "times")]
    redis: bool,
    /// Measure the HTTP group instead: a request through axum with and without a limit.
    #[arg(long, conflicts_with_all = ["times", "redis"])]
    http: bool,
    /// Measure the surface instead: keys, entries per log, verdicts and threads. Takes two minutes, or ten with --full.
    /// TEXT of --only selects cells, for example "10000 64 allowed 1".
    #[arg(long, conflicts_with_all = ["times", "redis", "http"])]
    surface: bool,
    /// Measure nothing, and render the documents again from the figures in benches/results.
    #[arg(long, conflicts_with_all = ["quick", "full", "only", "times", "redis", "http", "surface"])]
    render: bool,
    /// The workspace. The program writes figures to benches/results/*.json. From them it renders benches/RESULTS*.md,
    /// docs/bench-*.svg and the speed section of the README.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    workspace: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.render {
        return documents::write_all(&args.workspace);
    }
    match &args {
        Args { surface: true, .. } => surface(&args),
        Args { redis: true, .. } => redis(&args),
        Args { http: true, .. } => http(&args),
        _ => memory(&args),
    }
}

fn memory(args: &Args) -> Result<()> {
    let effort = if args.full {
        Effort { rounds: 201, turn: Duration::from_millis(20) }
    } else {
        Effort { rounds: 31, turn: Duration::from_millis(10) }
    };
    let mut results = Results::default();
    for scenario in SCENARIOS.iter().filter(|s| args.only.as_deref().is_none_or(|only| s.name.contains(only))) {
        eprintln!("{}: {}", scenario.name, scenario.about);
        results.rows.push(measure(scenario, effort));
    }
    let partial = args.only.is_some() || args.times;
    if !partial {
        eprintln!("admissions in the worst window");
        results.admitted = admission::compare();
        eprintln!("bytes per key");
        results.bytes = bytes::compare(1_000_000);
        eprintln!("a flood of keys");
        results.floods = flood::compare(10_000_000);
    }
    let record = Record::new(if args.full { "--full" } else { "--quick" }, results);
    println!("{}", documents::memory_text(&record));
    if partial { Ok(()) } else { save(args, &record) }
}

fn surface(args: &Args) -> Result<()> {
    let effort =
        surface::Effort { cell: Duration::from_millis(if args.full { 3000 } else { 1000 }), quick: !args.full };
    let selects = |cell: &surface::Cell| args.only.as_deref().is_none_or(|only| cell.to_string().contains(only));
    let results = surface::measure(effort, &surface::contestants(), selects);
    let record = Record::new(if args.full { "--surface --full" } else { "--surface --quick" }, results);
    println!("{}", documents::surface_text(&record));
    if args.only.is_some() { Ok(()) } else { save(args, &record) }
}

fn redis(args: &Args) -> Result<()> {
    let effort = if args.full { remote::Effort::FULL } else { remote::Effort::QUICK };
    let results = remote::measure(effort, args.only.as_deref())?;
    let record = Record::new(if args.full { "--redis --full" } else { "--redis --quick" }, results);
    println!("{}", documents::redis_text(&record));
    if args.only.is_some() { Ok(()) } else { save(args, &record) }
}

/// Measures the HTTP group.
fn http(args: &Args) -> Result<()> {
    let scenarios = http::SCENARIOS.iter().filter(|s| args.only.as_deref().is_none_or(|only| s.name.contains(only)));
    // Short turns: a change of the machine's other load then falls into few of them.
    let effort = Effort { rounds: if args.full { 3_001 } else { 501 }, turn: Duration::from_millis(1) };
    let rows = scenarios.map(|scenario| measure(scenario, effort)).collect();
    let arguments = if args.full { "--http --full" } else { "--http --quick" };
    let record = Record::new(arguments, http::Results { rows });
    println!("{}", documents::http_text(&record));
    if args.only.is_some() { Ok(()) } else { save(args, &record) }
}

fn save<R: Kind>(args: &Args, record: &Record<R>) -> Result<()> {
    record.save(&args.workspace)?;
    documents::write_all(&args.workspace)
}
