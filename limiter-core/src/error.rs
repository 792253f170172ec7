//! The one error type.

use std::error::Error as StdError;
use std::fmt;

use crate::log_key::LogKey;

/// Why an operation has no decision. A denial is not an error: see [`Decision::allowed`](crate::Decision::allowed).
///
/// Neither [`Display`](fmt::Display) nor [`Debug`] prints a key, because keys are often addresses or secrets;
/// [`key`](Self::key) returns it.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    name: String,
    key: Option<Vec<u8>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit, window or policy is malformed or out of range.
    InvalidLimit,
    /// A timestamp is out of range.
    InvalidTimestamp,
    /// The cost is 0. To look without consuming, peek.
    InvalidCost,
    /// The cost is above a limit's maximum, so the operation could never fit. Nothing was recorded.
    CostExceedsLimit,
    /// The store cannot be reached or refuses to serve. Nothing was recorded, or it is unknown whether it was.
    Unavailable,
    /// The store did not answer in time, and it is unknown whether the operation was recorded. To have it counted once,
    /// repeat it with the same [idempotency key](crate::Request::id).
    Timeout,
    /// What the store holds under the key is not a log. [`reset`](crate::Limiter::reset) removes it.
    Corrupt,
    /// The store's facts contradict the policy: a broken store, or one that another version writes to.
    Inconsistent,
    /// The configuration is wrong: an address, a credential, a missing permission, feature or timer.
    Configuration,
}

impl Error {
    /// Returns an error of this kind. The message says what failed, where, and what was expected; it never contains a key.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), name: String::new(), key: None, source: None }))
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Adds the log that the failed operation was for.
    #[must_use]
    pub fn with_log(mut self, log: LogKey<'_>) -> Self {
        (self.0.name, self.0.key) = (log.name.as_str().to_owned(), Some(log.key.to_vec()));
        self
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the key of the failed operation, if the error is about one key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key.as_deref()
    }

    /// Returns the name of the limiter that the failed operation came through, if the error is about one key.
    #[must_use]
    pub fn limiter_name(&self) -> Option<&str> {
        self.0.key.is_some().then_some(&self.0.name)
    }

    /// Whether the same call may succeed later without a change to it: true for [`ErrorKind::Unavailable`] and
    /// [`ErrorKind::Timeout`], false for every other kind.
    ///
    /// After [`ErrorKind::Timeout`] a repeated call may count twice unless it carries the same idempotency key.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(name) = self.limiter_name() {
            out.field("limiter", &name);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limiter_name() {
            Some(name) => write!(f, "limiter \"{}\": {}", name.escape_debug(), self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    #[test]
    fn keys_are_returned_but_never_printed() {
        let log = LogKey::new(Name::new("login"), b"203.0.113.7");
        let error = Error::new(ErrorKind::Timeout, "no answer in 250 ms").with_log(log);
        assert_eq!(error.to_string(), "limiter \"login\": no answer in 250 ms");
        assert!(!format!("{error:?} {log:?}").contains("203"), "{error:?} {log:?}");
        assert_eq!((error.key(), error.limiter_name()), (Some(&b"203.0.113.7"[..]), Some("login")));
        assert!(error.is_retryable() && !Error::new(ErrorKind::Corrupt, "").is_retryable());
    }
}
