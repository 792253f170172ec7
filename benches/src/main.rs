//! Measures all contestants in turns, and writes the tables and plots.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use limiter_benches::record::{HTTP, MEMORY, REDIS, Record, SERVICE, SURFACE};
use limiter_benches::render;
use limiter_benches::turns::Effort;

/// Compares the limiter with its peers: time, over-admission and memory in memory, or another group. Prints Markdown.
#[derive(Debug, Parser)]
struct Args {
    /// Finish within three minutes (the default).
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Run longer turns, and more of them.
    #[arg(long)]
    full: bool,
    /// Measure only scenarios whose names contain TEXT, and write no files. Cells of the surface have names like
    /// "10000 64 allowed 1".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// With --only: write the figures into the record of this processor, beside those of the other scenarios.
    #[arg(long, requires = "only")]
    add: bool,
    /// Measure decisions in Redis, on a redis-server that this program starts (`LIMITER_REDIS_SERVER` selects the
    /// binary). Takes two minutes, or longer with --full.
    #[arg(long)]
    redis: bool,
    /// Measure a request through axum with and without a limit.
    #[arg(long, conflicts_with = "redis")]
    http: bool,
    /// Measure requests to limiter-server over gRPC, beside a service that always answers OK.
    #[arg(long, conflicts_with_all = ["redis", "http"])]
    service: bool,
    /// Measure keys, entries per log, verdicts and threads. Takes two minutes, or ten with --full.
    #[arg(long, conflicts_with_all = ["redis", "http", "service"])]
    surface: bool,
    /// Measure nothing, and render the documents again from the figures in benches/results.
    #[arg(long, conflicts_with_all = ["quick", "full", "only", "redis", "http", "service", "surface"])]
    render: bool,
    /// The workspace. The program writes figures to benches/results. From them it renders benches/RESULTS*.md,
    /// docs/bench-*.svg, and sections of README.md and docs/operations.md.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    workspace: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.render {
        return render::write_all(&args.workspace);
    }
    let group = match &args {
        Args { surface: true, .. } => &SURFACE,
        Args { redis: true, .. } => &REDIS,
        Args { http: true, .. } => &HTTP,
        Args { service: true, .. } => &SERVICE,
        _ => &MEMORY,
    };
    let effort = if args.full { Effort::FULL } else { Effort::QUICK };
    let record = Record::measure(group, &effort, args.only.as_deref())?;
    for (name, text) in (group.sections)(std::slice::from_ref(&record)) {
        println!("## {name}\n\n{text}");
    }
    if args.only.is_some() && !args.add {
        return Ok(());
    }
    record.save(group, &args.workspace, args.add)?;
    render::write_all(&args.workspace)
}
