//! Measures all libraries in turns and writes the tables and plots.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use limiter_benches::libraries::{Library, Now};
use limiter_benches::measure::{Effort, measure};
use limiter_benches::plot::{Bar, bars};
use limiter_benches::report::{PEERS, Results};
use limiter_benches::scenario::SCENARIOS;
use limiter_benches::{admission, bytes, http, remote};

#[global_allocator]
static ALLOCATOR: bytes::Counting = bytes::Counting;

/// Compares the limiter with its peers: time, over-admission and memory, as Markdown on standard output.
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
    /// Measure the Redis group instead, on a redis-server that this program starts (`LIMITER_REDIS_SERVER` names the
    /// binary). Takes two minutes, or longer with --full. Writes benches/RESULTS-REDIS.md and docs/bench-redis.svg.
    #[arg(long, conflicts_with = "times")]
    redis: bool,
    /// Measure the HTTP group instead: a request through axum with and without a limit. Writes benches/RESULTS-HTTP.md.
    #[arg(long, conflicts_with_all = ["times", "redis"])]
    http: bool,
    /// The workspace, in which benches/RESULTS*.md and docs/bench-*.svg are written.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    workspace: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.redis {
        return redis(&args);
    }
    if args.http {
        return http(&args);
    }
    let effort = effort(args.full);
    let mut results = Results::default();
    for scenario in SCENARIOS.iter().filter(|s| args.only.as_deref().is_none_or(|only| s.name.contains(only))) {
        eprintln!("{}: {}", scenario.name, scenario.about);
        results.rows.push(measure(scenario, effort));
    }
    let partial = args.only.is_some() || args.times;
    if !partial {
        eprintln!("what is admitted in the worst window");
        results.admitted = admission::compare();
        eprintln!("bytes a key");
        results.bytes = bytes::compare(1_000_000);
    }
    let text = format!("{}{}", preamble(args.full)?, results.markdown());
    println!("{text}");
    if !partial {
        write(&args.workspace.join("benches/RESULTS.md"), &text)?;
        plots(&args.workspace.join("docs"), &results)?;
    }
    Ok(())
}

/// Measures the Redis group.
fn redis(args: &Args) -> Result<()> {
    let effort = if args.full { remote::Effort::FULL } else { remote::Effort::QUICK };
    let results = remote::measure(effort, args.only.as_deref())?;
    let command = if args.full { "--redis --full" } else { "--redis --quick" };
    let mut text = String::from("# The limiter in Redis beside its peers\n\n");
    writeln!(text, "The output of `cargo run --release -p limiter-benches -- {command}`. All take short turns on one")?;
    writeln!(
        text,
        "server, so that other load on the machine hits all alike; every answer is asserted. The server is one of"
    )?;
    writeln!(text, "its own: `LIMITER_REDIS_SERVER=/path/to/redis-server` chooses the binary.\n")?;
    writeln!(text, "- machine: {}", machine())?;
    let versions = versions(&["limiter-redis", "redis", "trypema"]);
    writeln!(text, "- versions: {}, {versions}", results.version)?;
    text.push_str(&results.markdown());
    println!("{text}");
    if args.only.is_none() {
        write(&args.workspace.join("benches/RESULTS-REDIS.md"), &text)?;
        let plot = args.workspace.join("docs/bench-redis.svg");
        bars(&plot, "A decision in Redis; shorter is better", &results.groups())?;
    }
    Ok(())
}

fn effort(full: bool) -> Effort {
    if full {
        Effort { rounds: 201, turn: Duration::from_millis(20) }
    } else {
        Effort { rounds: 31, turn: Duration::from_millis(10) }
    }
}

/// Measures the HTTP group.
fn http(args: &Args) -> Result<()> {
    let scenarios = http::SCENARIOS.iter().filter(|s| args.only.as_deref().is_none_or(|only| s.name.contains(only)));
    let rows: Vec<_> = scenarios.map(|scenario| measure(scenario, effort(args.full))).collect();
    let command = if args.full { "--http --full" } else { "--http --quick" };
    let mut text = String::from("# The limiter in axum beside its peer\n\n");
    writeln!(
        text,
        "The output of `cargo run --release -p limiter-benches -- {command}`. All take short turns within one"
    )?;
    writeln!(text, "process, so that other load on the machine hits all alike; every status is asserted.\n")?;
    writeln!(text, "- machine: {}", machine())?;
    writeln!(text, "- versions: {}", versions(&["limiter-tower", "tower_governor", "axum"]))?;
    text.push_str(&http::markdown(&rows));
    println!("{text}");
    if args.only.is_none() {
        write(&args.workspace.join("benches/RESULTS-HTTP.md"), &text)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Returns the processor, its hardware threads and the operating system.
fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {threads} hardware threads, {}", model.unwrap_or("unknown"), std::env::consts::OS)
}

/// Returns the locked versions of these crates.
fn versions(names: &[&str]) -> String {
    let lock = include_str!("../../Cargo.lock");
    let version = |name: &&str| {
        let (_, package) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        package.split_once('"').map(|(version, _)| format!("{name} {version}"))
    };
    names.iter().filter_map(version).collect::<Vec<_>>().join(", ")
}

/// Returns the head of the results: the command, the machine and the versions.
fn preamble(full: bool) -> Result<String> {
    let mut out = String::from("# The limiter beside its peers\n\n");
    let command = if full { "--full" } else { "--quick" };
    writeln!(
        out,
        "The output of `cargo run --release -p limiter-benches -- {command}`. All libraries of a scenario take"
    )?;
    writeln!(
        out,
        "short turns within one process, so that other load on the machine hits all alike; every operation's"
    )?;
    writeln!(out, "answer is asserted. Each library is called by its public API and reads its real clock.\n")?;
    writeln!(out, "- machine: {}", machine())?;
    let names = ["limiter-memory", "governor", "trypema", "limitador", "throttlecrab"];
    writeln!(out, "- versions: {}", versions(&names))?;
    writeln!(
        out,
        "- trypema, limitador and throttlecrab count in whole seconds: a quota per millisecond is theirs as the"
    )?;
    writeln!(
        out,
        "  same rate per second. throttlecrab is in a `Mutex`. Keys are `String`s of 16 bytes, in the cache"
    )?;
    writeln!(out, "  unless the scenario says otherwise.")?;
    Ok(out)
}

fn plots(docs: &Path, results: &Results) -> Result<()> {
    fs::create_dir_all(docs).with_context(|| format!("{} cannot be made", docs.display()))?;
    let libraries: Vec<&str> = [Now::NAME].into_iter().chain(PEERS).collect();
    let shown = ["hot/allowed", "hot/denied", "keys_1024/allowed", "keys_1M/uniform", "hot/two_threads"];
    let rows = shown.iter().filter_map(|name| results.rows.iter().find(|row| row.name == *name));
    let groups = rows.map(|row| {
        let bar = |library: &&str| {
            let value = row.of(library)?;
            Some(Bar {
                label: (*library).to_owned(),
                value,
                shown: format!("{value:.0} ns"),
                ours: *library == Now::NAME,
            })
        };
        (row.about.to_owned(), libraries.iter().filter_map(bar).collect())
    });
    let title = "Nanoseconds a decision; shorter is faster, and a broken bar is longer than it looks";
    bars(&docs.join("bench-time.svg"), title, &groups.collect::<Vec<_>>())?;
    let admitted = |name: &str, of: fn(&admission::Admitted) -> usize| {
        let bar = |admitted: &admission::Admitted| Bar {
            label: admitted.library.to_owned(),
            value: of(admitted) as f64,
            shown: of(admitted).to_string(),
            ours: admitted.library == Now::NAME,
        };
        (name.to_owned(), results.admitted.iter().map(bar).collect())
    };
    let groups = [
        admitted("400 requests around the end of the first second", |admitted| admitted.boundary),
        admitted("five times the limit, for three seconds", |admitted| admitted.steady),
    ];
    bars(&docs.join("bench-admitted.svg"), "Admitted in the worst second, where the limit is 100", &groups)
}
