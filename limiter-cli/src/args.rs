//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use limiter_cli::trace;
use limiter_core::{Counting, Limit};

/// An exact sliding-window rate limiter, from the command line.
#[derive(Debug, Parser)]
#[command(name = "limiter", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Replay(Replay),
    Generate(Generate),
    #[cfg(feature = "redis")]
    Key(crate::key::Key),
}

/// Runs a trace against limits: who is over them, and when.
///
/// A trace is a CSV file with a header row, or an access log of a web server (combined or common log format). CSV has
/// the columns `at` and `key`, optionally `cost` (default 1) and `op` (acquire, peek, record or reset; default acquire),
/// in any order; other columns are ignored. `at` is seconds with up to six decimals, Unix or relative, or RFC 3339. Of
/// an access log, the key is the client address. Rows need not be in the order of time: a key's time never runs back.
///
/// Exit status: 0 when done, 2 for wrong usage or a malformed trace, 1 for any other failure.
#[derive(Args, Debug)]
pub(crate) struct Replay {
    /// The trace; - for standard input, the default
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// At most MAX units within any WINDOW (units us, ms, s, m, h, d). Repeat it for a policy of several limits
    #[arg(long = "limit", value_name = "MAX/WINDOW", required = true)]
    pub(crate) limits: Vec<Limit>,
    /// What an acquire counts: only what was allowed, or every attempt
    #[arg(long, value_enum, default_value_t = Count::Admitted)]
    pub(crate) count: Count,
    /// Where the logs are kept: memory, or the URL of a Redis (redis://, rediss://, redis+unix://, redis+cluster://,
    /// rediss+cluster://), under keys of the run's own that are removed afterwards. The times are always the trace's own
    #[arg(long, value_name = "STORE", default_value = "memory", value_parser = store)]
    pub(crate) store: Store,
    /// What the trace looks like [default: by content]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// A summary for people, or one JSON object per row; in the latter, keys that are not UTF-8 are shown lossily
    #[arg(long, value_enum, default_value_t = Output::Summary)]
    pub(crate) output: Output,
    /// Draws the usage against the limit, and the denials over time
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// The key whose usage is drawn [default: the one denied most, else the busiest]
    #[arg(long, value_name = "KEY", requires = "plot")]
    pub(crate) key: Option<String>,
    /// Goes on after a malformed row, and reports how many there were
    #[arg(long)]
    pub(crate) skip_invalid: bool,
}

/// Writes a made-up trace as CSV: random arrivals, few busy and many quiet keys.
#[derive(Args, Debug)]
pub(crate) struct Generate {
    /// How many rows
    #[arg(long, default_value_t = 100_000)]
    pub(crate) rows: u64,
    /// From how many keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Rows per second on average
    #[arg(long, default_value_t = 100.0)]
    pub(crate) rate: f64,
    /// How unequal the keys are: the exponent of Zipf's law, 0 for all alike
    #[arg(long, default_value_t = 1.0)]
    pub(crate) skew: f64,
    /// The same seed makes the same trace
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Count {
    Admitted,
    Attempts,
}

impl From<Count> for Counting {
    fn from(count: Count) -> Self {
        match count {
            Count::Admitted => Self::Admitted,
            Count::Attempts => Self::Attempts,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    Csv,
    Combined,
}

impl From<Format> for trace::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Csv => Self::Csv,
            Format::Combined => Self::Combined,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Summary,
    Jsonl,
}

#[derive(Clone, Debug)]
pub(crate) enum Store {
    Memory,
    #[cfg(feature = "redis")]
    Redis(String),
}

fn store(text: &str) -> Result<Store, String> {
    if text == "memory" {
        return Ok(Store::Memory);
    }
    #[cfg(feature = "redis")]
    return url(text).map(Store::Redis).map_err(|expected| format!("expected memory, or {expected}"));
    #[cfg(not(feature = "redis"))]
    return Err(String::from("expected memory: this build has no Redis"));
}

#[cfg(feature = "redis")]
pub(crate) fn url(text: &str) -> Result<String, String> {
    let scheme = text.split("://").next().filter(|scheme| scheme.len() < text.len()).unwrap_or_default();
    match scheme {
        "redis" | "rediss" | "redis+unix" | "unix" | "redis+cluster" | "rediss+cluster" => Ok(text.to_owned()),
        _ => Err("a URL that starts with redis://, rediss://, redis+unix://, redis+cluster:// or rediss+cluster://"
            .to_owned()),
    }
}
