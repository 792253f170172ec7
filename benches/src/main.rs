//! Measures all contestants in turns, and writes the tables.

use std::path::Path;

use anyhow::Result;
use clap::Parser;
use limiter_benches::group::Group;
use limiter_benches::{render, service};

/// Compares the limiter with its peers. Prints Markdown, writes the figures to benches/results, and renders from them
/// benches/RESULTS*.md, docs/boundary.svg, and sections of README.md, docs/resolutions.md and docs/operations.md.
#[derive(Debug, Parser)]
struct Args {
    /// What to measure
    #[arg(value_enum, default_value_t = Group::Memory)]
    group: Group,
    /// Measure only scenarios whose names contain TEXT, and write no files. Cells of the surface have names like
    /// "10000 64 allowed 1"
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure nothing, and render the documents again from the figures in benches/results
    #[arg(long, conflicts_with_all = ["group", "only"])]
    render: bool,
    /// Serve this response to all requests, for a scenario
    #[arg(long, value_name = "JSON", hide = true, conflicts_with_all = ["group", "only", "render"])]
    repeat: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(answer) = args.repeat {
        return service::repeat(&answer);
    }
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if args.render {
        return render::write_all(workspace);
    }
    let record = args.group.measure(args.only.as_deref())?;
    for (name, text) in render::sections(args.group, std::slice::from_ref(&record)) {
        println!("## {name}\n\n{text}");
    }
    if args.only.is_some() {
        return Ok(());
    }
    record.save(&args.group.name(), workspace)?;
    render::write_all(workspace)
}
