//! The command-line arguments of `key`.

use std::ffi::OsString;

use anyhow::Context;
use clap::{Args, Subcommand};
use limiter_core::{Limit, Name, Policy};

use crate::escape::unescape;
use crate::options::{self, Output};
use crate::store::{StoreUrl, UrlParser};
use crate::usage_error::UsageError;

/// Shows and resets a running service's logs in Redis or Postgres.
///
/// Exit status: 0 for success, 2 for a usage error, 1 for any other failure. Connecting times out after 2 s, a command
/// after two attempts of 2 s each.
#[derive(Args, Debug)]
pub struct Key {
    #[command(subcommand)]
    pub(super) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    Show(ShowArgs),
    Reset(ResetArgs),
    List(ListArgs),
}

/// The location of the logs.
#[derive(Args, Debug)]
pub(super) struct Target {
    /// The URL of a Postgres database, postgres://, or of a Redis server or cluster: redis://, rediss://, redis+unix://,
    /// redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://
    #[arg(long, value_name = "URL", env = "LIMITER_STORE", hide_env_values = true, value_parser = UrlParser)]
    pub(super) store: StoreUrl,
    /// The key prefix of the service's store in Redis
    #[arg(long, env = "LIMITER_PREFIX", default_value = limiter_redis::DEFAULT_PREFIX)]
    pub(super) prefix: String,
}

/// Prints a key's log and, with limits, the decision on a request at this moment. Only reads.
#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// The key, as list prints it: any byte can be written as \xNN, a backslash as \\
    #[arg(value_name = "KEY")]
    pub(super) key: OsString,
    /// The limiter's name, as list prints it
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(super) name: Name,
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Removes keys' logs, which unblocks the keys.
#[derive(Args, Debug)]
pub(super) struct ResetArgs {
    /// The keys, as list prints them: any byte can be written as \xNN, a backslash as \\
    #[arg(value_name = "KEY", required = true)]
    pub(super) keys: Vec<OsString>,
    /// The limiter's name, as list prints it
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(super) name: Name,
    #[command(flatten)]
    pub(super) target: Target,
}

/// Lists the logs as a scan finds them, in no particular order. Only reads, and never blocks the server.
///
/// A log may be listed twice if Redis resizes its table during the scan. For a key of more than about 255 bytes, the store
/// holds only a digest: list prints the digest, and cannot apply limits to that key.
#[derive(Args, Debug)]
pub(super) struct ListArgs {
    /// Only logs of the limiter with this name
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(super) name: Option<Name>,
    /// Only keys whose printed form matches: * matches any characters, ? matches one
    #[arg(long = "match", value_name = "GLOB")]
    pub(super) pattern: Option<String>,
    /// Only keys that would be denied a request now
    #[arg(long, requires = "limits")]
    pub(super) over: bool,
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// The output on a log.
#[derive(Args, Debug)]
pub(super) struct Shown {
    /// Apply this limit: at most MAX units within any WINDOW. Several limits with commas, or several options, are one policy
    #[arg(
        long = "limit",
        id = "limits",
        value_name = "MAX/WINDOW",
        value_delimiter = ','
    )]
    limits: Vec<Limit>,
    /// Text, or one JSON object per log
    #[arg(long, value_enum, default_value_t = Output::Summary)]
    pub(super) output: Output,
}

impl Shown {
    /// Returns the policy of the limits. `None` if there are none.
    pub(super) fn policy(&self) -> Result<Option<Policy>, UsageError> {
        if self.limits.is_empty() {
            Ok(None)
        } else {
            options::policy(&self.limits).map(Some)
        }
    }
}

/// Parses a limiter's name in its printed form.
fn name(text: &str) -> Result<Name, String> {
    let name = String::from_utf8(unescape(text.as_bytes())?);
    name.map(Name::from)
        .map_err(|_| "the name of a limiter is UTF-8".to_owned())
}

/// Parses a key in its printed form.
pub(super) fn key(text: &OsString) -> anyhow::Result<Vec<u8>> {
    let key = unescape(text.as_encoded_bytes()).map_err(UsageError);
    key.with_context(|| format!("key \"{}\"", text.to_string_lossy().escape_debug()))
}
