//! The command line of `replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use limiter_core::Limit;

use crate::options::{Count, Store};
use crate::trace;

/// Runs a trace against limits: who is over them, and when.
///
/// A trace is a CSV file with a header row, or an access log of a web server (combined or common log format). CSV has
/// the columns `at` and `key`, optionally `cost` (default 1) and `op` (acquire, peek, record or reset; default acquire),
/// in any order; other columns are ignored. `at` is seconds with up to six decimals, Unix or relative, or RFC 3339. Of
/// an access log, the key is the client address. Rows need not be in the order of time: a key's time never runs back.
///
/// Exit status: 0 when done, 2 for wrong usage or a malformed trace, 1 for any other failure.
#[derive(Args, Debug)]
pub struct Replay {
    /// The trace; - for standard input, the default
    #[arg(value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// At most MAX units within any WINDOW (units us, ms, s, m, h, d). Repeat it for a policy of several limits
    #[arg(long = "limit", value_name = "MAX/WINDOW", required = true)]
    pub(super) limits: Vec<Limit>,
    /// What an acquire counts: only what was allowed, or every attempt
    #[arg(long, value_enum, default_value_t = Count::Admitted)]
    pub(super) count: Count,
    /// Where the logs are kept: memory, or the URL of a Redis (redis://, rediss://, redis+unix://, redis+cluster://,
    /// rediss+cluster://), under keys of the run's own that are removed afterwards. The times are always the trace's own
    #[arg(long, value_name = "STORE", default_value = "memory", value_parser = Store::parse)]
    pub(super) store: Store,
    /// What the trace looks like [default: by content]
    #[arg(long, value_enum)]
    pub(super) format: Option<Format>,
    /// A summary for people, or one JSON object per row; in the latter, keys that are not UTF-8 are shown lossily
    #[arg(long, value_enum, default_value_t = Output::Summary)]
    pub(super) output: Output,
    /// Draws the usage against the limit, and the denials over time
    #[arg(long, value_name = "OUT.svg")]
    pub(super) plot: Option<PathBuf>,
    /// The key whose usage is drawn [default: the one denied most, else the busiest]
    #[arg(long, value_name = "KEY", requires = "plot")]
    pub(super) key: Option<String>,
    /// Goes on after a malformed row, and reports how many there were
    #[arg(long)]
    pub(super) skip_invalid: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
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
pub(super) enum Output {
    Summary,
    Jsonl,
}
