//! The command-line arguments of `replay`.

use std::path::PathBuf;

use clap::Args;

use crate::escape::unescape;
use crate::options::{Output, PolicyArgs};
use crate::pass::TraceArgs;

/// Replays a trace against rate limits, and shows which keys exceed them and when.
///
/// A trace is a CSV file with a header row, or the access log of a web server (combined or common log format). CSV
/// has the columns `at` and `key`, and optionally `cost` (default: 1) and `op` (acquire, peek, record or reset;
/// default: acquire), in any order. Other columns are ignored. `at` is Unix or relative seconds, or RFC 3339, rounded
/// down to microseconds. The key of an access log is the client address, which may follow a virtual host or the prefix
/// of docker or syslog. Rows may be slightly out of order: within a key, time never runs backwards. Rotated files come in order, the
/// oldest first.
///
/// Exit status: 0 for success, 2 for a usage error or a malformed trace, 1 for any other failure, including a trace of
/// which more than half of the rows were skipped, or more than 1 % come too late.
#[derive(Args, Debug)]
pub struct Replay {
    #[command(flatten)]
    pub(super) trace: TraceArgs,
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    /// A text summary, or one JSON object per row. JSON replaces bytes that are not UTF-8
    #[arg(long, value_enum, default_value_t = Output::Summary)]
    pub(super) output: Output,
    /// Plots one key's usage against the limit, and all denials over time, as SVG
    #[arg(long, value_name = "OUT.svg")]
    pub(super) plot: Option<PathBuf>,
    /// The key to plot, as the summary prints it: any byte can be written as \xNN, a backslash as \\
    /// [default: the key with the most denials, or else the busiest]
    #[arg(long, value_name = "KEY", requires = "plot", value_parser = key)]
    pub(super) key: Option<Box<[u8]>>,
}

/// Parses a key in its printed form.
fn key(text: &str) -> Result<Box<[u8]>, String> {
    unescape(text.as_bytes()).map(Into::into)
}
