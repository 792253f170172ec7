//! A trace's rows, and the errors that may take their place.

use std::fmt;
use std::io;

use clap::ValueEnum;
use limiter_core::Timestamp;
use serde::Serialize;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A header row with the columns `at` and `key`, optionally `cost` and `op`; other columns are ignored
    Csv,
    /// The combined or the common log format of web servers. The key is the client address
    Combined,
}

/// The operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Takes `cost` units if they fit.
    Acquire,
    /// Checks whether `cost` units would fit.
    Peek,
    /// Counts `cost` units even if they do not fit.
    Record,
    /// Removes the key's log.
    Reset,
}

/// A row of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The time in the row.
    pub at: Timestamp,
    /// The key, which may hold any bytes.
    pub key: &'a [u8],
    /// The operation.
    pub action: Action,
    /// The cost as written in the row. May be 0, or above any limit.
    pub cost: u64,
}

/// A malformed row, or a trace that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line in which the row starts, counted from 1.
    pub line: u64,
    /// The expected and the actual value.
    pub message: String,
    /// Whether the following rows can still be read.
    pub skippable: bool,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for Malformed {}

pub(super) fn malformed(line: u64, message: impl Into<String>) -> anyhow::Error {
    Malformed {
        line,
        message: message.into(),
        skippable: true,
    }
    .into()
}

pub(super) fn unreadable(line: u64, message: impl Into<String>) -> anyhow::Error {
    Malformed {
        line,
        message: message.into(),
        skippable: false,
    }
    .into()
}

/// Hides the type of the error, because an [`io::Error`] is one of the output.
pub(super) fn read_failed(error: &io::Error) -> anyhow::Error {
    anyhow::Error::msg(format!("reading the trace: {error}"))
}

/// Returns bytes of the input for an error message: printable, and at most the first 60.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MAX_SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN)]);
    let dots = if bytes.len() > MAX_SHOWN { "…" } else { "" };
    format!("\"{}{dots}\"", text.escape_debug())
}
