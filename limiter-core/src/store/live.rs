//! Live logs as operators see them.

use std::fmt;
use std::time::Duration;

use crate::policy::time::Timestamp;

/// Describes a log as a store holds it, including expired entries that no append has removed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogInfo {
    /// The number of entries.
    pub entries: u64,
    /// The sum of their costs.
    pub cost: u64,
    /// The time of the oldest entry.
    pub oldest: Timestamp,
    /// The time of the newest entry.
    pub newest: Timestamp,
    /// The time until the store may delete the log. `None` if it never may, which means that another program changed it.
    pub expires_in: Option<Duration>,
    /// The log's bytes with its key: in Redis, by `MEMORY USAGE`.
    pub bytes: u64,
}

/// Names a log that a scan found, or a key that looks like one and holds something else. [`Debug`] does not print the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveKey {
    /// The name of the limiter.
    pub name: String,
    /// The key, or its digest.
    pub key: StoredKey,
}

/// A key as a store can read it back. [`Display`](fmt::Display) prints it, [`Debug`] does not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoredKey {
    /// The key itself.
    Known(Box<[u8]>),
    /// The SHA-256, in hexadecimal digits, of a key that is too long for the store.
    Digest(Box<str>),
}

impl fmt::Display for StoredKey {
    /// Prints the key, with everything but printable ASCII escaped, or `sha256:` and the digest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(key) => write!(f, "{}", key.escape_ascii()),
            Self::Digest(hex) => write!(f, "sha256:{hex}"),
        }
    }
}

impl fmt::Debug for StoredKey {
    /// Prints the length only: keys are often addresses or secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(key) => write!(f, "Known({} bytes)", key.len()),
            Self::Digest(_) => f.write_str("Digest(..)"),
        }
    }
}
