//! What a trace holds: rows, or errors in their place.

use std::fmt;
use std::io;

use limiter_core::Timestamp;

/// What a trace looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header row with the columns `at` and `key`, optionally `cost` and `op`; other columns are ignored.
    Csv,
    /// The combined or the common log format of web servers. The key is the client address.
    Combined,
}

/// What a row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take `cost` units if they fit.
    Acquire,
    /// Look whether `cost` units would fit.
    Peek,
    /// Count `cost` units, whether they fit or not.
    Record,
    /// Remove the key's log.
    Reset,
}

impl Action {
    /// The name in the column `op`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Peek => "peek",
            Self::Record => "record",
            Self::Reset => "reset",
        }
    }
}

/// One row of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The row's own time.
    pub at: Timestamp,
    /// Whose log: any bytes.
    pub key: &'a [u8],
    /// What is done.
    pub action: Action,
    /// The units, as the row says: also 0 and more than any limit.
    pub cost: u64,
}

/// A row, or a whole trace, that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line in which the row begins, from 1 on.
    pub line: u64,
    /// What was expected, and what was found.
    pub message: String,
    /// Whether the rows that follow can still be read.
    pub skippable: bool,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for Malformed {}

/// Why there is no next row.
#[derive(Debug)]
pub enum TraceError {
    /// Reading failed.
    Io(io::Error),
    /// The row is malformed.
    Malformed(Malformed),
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "reading the trace: {error}"),
            Self::Malformed(malformed) => malformed.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            // Its text is this error's own.
            Self::Malformed(_) => None,
        }
    }
}

pub(super) fn malformed(line: u64, message: impl Into<String>) -> TraceError {
    TraceError::Malformed(Malformed { line, message: message.into(), skippable: true })
}

pub(super) fn unreadable(line: u64, message: impl Into<String>) -> TraceError {
    TraceError::Malformed(Malformed { line, message: message.into(), skippable: false })
}

/// Bytes of the input as an error shows them: printable, the first 60 at most.
pub(super) fn shown(bytes: &[u8]) -> String {
    const MAX_SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN)]);
    let dots = if bytes.len() > MAX_SHOWN { "…" } else { "" };
    format!("\"{}{dots}\"", text.escape_debug())
}
