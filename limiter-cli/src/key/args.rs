//! The command line of the commands on live keys.

use std::ffi::OsString;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use limiter_cli::escape::{escape, from_hex, to_hex, unescape};
use limiter_core::{Limit, Policy};

use crate::run::Usage;

/// Looks at live keys in Redis, and unblocks them.
///
/// Exit status: 0 when done, 2 for wrong usage, 1 for any other failure: a server that cannot be reached is waited for 2 s
/// when connecting, and twice 2 s by a command.
#[derive(Args, Debug)]
pub(crate) struct Key {
    #[command(subcommand)]
    pub(super) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    Show(Show),
    Reset(Reset),
    List(List),
}

/// Where the keys are.
#[derive(Args, Debug)]
pub(super) struct Place {
    /// The URL of the Redis: redis://, rediss://, redis+unix://, redis+cluster:// or rediss+cluster://
    #[arg(long, value_name = "URL", env = "LIMITER_STORE", hide_env_values = true, value_parser = url)]
    pub(super) store: String,
    /// What the keys of the limiter start with
    #[arg(long, default_value = limiter_redis::DEFAULT_PREFIX)]
    pub(super) prefix: String,
    /// Keys are given and printed as hexadecimal digits
    #[arg(long)]
    pub(super) hex: bool,
}

/// Prints what Redis holds for a key, and with limits the decision on a request of now. Changes nothing.
#[derive(Args, Debug)]
pub(super) struct Show {
    /// The key, as list prints it: bytes may be written \xNN, a backslash \\
    #[arg(value_name = "KEY")]
    pub(super) key: OsString,
    /// At most MAX units within any WINDOW. Repeat it for a policy of several limits
    #[arg(long = "limit", value_name = "MAX/WINDOW")]
    pub(super) limits: Vec<Limit>,
    #[command(flatten)]
    pub(super) place: Place,
    /// For people, or one JSON object
    #[arg(long, value_enum, default_value_t = Form::Table)]
    pub(super) output: Form,
}

/// Removes the logs of keys: whoever was denied may go on.
#[derive(Args, Debug)]
pub(super) struct Reset {
    /// The keys, as list prints them: bytes may be written \xNN, a backslash \\
    #[arg(value_name = "KEY", required = true)]
    pub(super) keys: Vec<OsString>,
    #[command(flatten)]
    pub(super) place: Place,
}

/// Lists the keys that have a log, in no order, as they are found. Changes nothing, and never stops the server: it scans.
///
/// A key may come up twice if Redis rearranges its table meanwhile. A key of which Redis holds the digest only, because it
/// is longer than 256 bytes, is listed as that; no limits can be tried on it.
#[derive(Args, Debug)]
pub(super) struct List {
    /// Only keys that look like this as they are printed: * stands for any characters, ? for one
    #[arg(long = "match", value_name = "GLOB")]
    pub(super) pattern: Option<String>,
    /// Only keys of which a request of now would be denied
    #[arg(long, requires = "limits")]
    pub(super) over: bool,
    /// Tries this limit on every key. Repeat it for a policy of several limits
    #[arg(long = "limit", id = "limits", value_name = "MAX/WINDOW")]
    pub(super) limits: Vec<Limit>,
    #[command(flatten)]
    pub(super) place: Place,
    /// For people, or one JSON object per key
    #[arg(long, value_enum, default_value_t = Form::Table)]
    pub(super) output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    Table,
    Jsonl,
}

fn url(text: &str) -> Result<String, String> {
    crate::args::url(text).map_err(|expected| format!("expected {expected}"))
}

/// The policy of these limits, if there are any.
pub(super) fn policy(limits: &[Limit]) -> anyhow::Result<Option<Policy>> {
    if limits.is_empty() {
        return Ok(None);
    }
    Ok(Some(Policy::new(limits.iter().copied()).map_err(|error| Usage(error.to_string()))?))
}

impl Place {
    /// A key as it was given.
    pub(super) fn key(&self, text: &OsString) -> anyhow::Result<Vec<u8>> {
        let bytes = text.as_encoded_bytes();
        let key = if self.hex { from_hex(bytes) } else { unescape(bytes) };
        key.map_err(Usage).with_context(|| format!("key \"{}\"", text.to_string_lossy().escape_debug()))
    }

    /// A key to be printed.
    pub(super) fn shown(&self, key: &[u8]) -> String {
        if self.hex { to_hex(key) } else { escape(key) }
    }
}
