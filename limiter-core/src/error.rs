//! The one error type.

use std::error::Error as StdError;
use std::fmt;

/// Why an operation has no decision. A denial is not an error: see [`Decision::allowed`](crate::Decision::allowed).
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What sort of error it is; match on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit, window or policy is malformed or out of range.
    InvalidLimit,
    /// A timestamp is out of range.
    InvalidTimestamp,
    /// A cost of 0: looking without consuming is a peek.
    InvalidCost,
    /// The cost is above a limit's maximum, so the operation could never fit. Nothing was recorded.
    CostExceedsLimit,
    /// The store cannot be reached, or refuses to serve. Nothing was recorded, or it is not known whether it was.
    Unavailable,
    /// The store did not answer in time. It is not known whether the operation was recorded: repeat it with the same
    /// [`EntryId`](crate::EntryId) to have it counted once.
    Timeout,
    /// What the store holds under the key is not a log. [`reset`](crate::Limiter::reset) mends it.
    Corrupt,
    /// The store's facts contradict the policy: a broken store, or one that another version writes to.
    Inconsistent,
    /// The store's configuration is wrong: an address, a credential, a missing permission.
    Configuration,
}

impl Error {
    /// An error of this kind. The message names what, where, and what was expected.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: None }))
    }

    /// The same error, caused by `source`.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What sort of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later without a change to it.
    ///
    /// After [`ErrorKind::Timeout`] a repeated call counts twice unless it carries the same id.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
