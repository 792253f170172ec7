//! The error type of every crate in the workspace.

use std::fmt;

use crate::store::log_key::LogKey;

/// The reason why an operation has no decision.
///
/// A denial is not an error: see [`Decision::is_denied`](crate::Decision::is_denied).
///
/// [`Display`](fmt::Display) prints what failed and why: `Redis failed: connection refused`. There is no
/// [`source`](std::error::Error::source), so a program that prints all sources prints each text once.
///
/// Keys are often addresses or secrets, so neither [`Display`](fmt::Display) nor [`Debug`] prints them.
/// [`key`](Self::key) returns the key.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    /// The limiter's name and the key.
    log: Option<(&'static str, Vec<u8>)>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit, window or policy is malformed or out of range.
    InvalidLimit,
    /// A timestamp is out of range.
    InvalidTimestamp,
    /// The cost is 0. Use a peek to check without consuming.
    InvalidCost,
    /// The cost is above a limit's maximum, so the operation can never fit. Nothing was recorded.
    CostExceedsLimit,
    /// A permit or an idempotency key needs an exact limit: a limit with a [resolution](crate::Limit::resolution) keeps no single
    /// entries. Nothing was recorded.
    NeedsExactLimit,
    /// The store cannot be reached or refuses to serve. The operation may or may not have been recorded.
    Unavailable,
    /// The store did not respond in time. The operation may or may not have been recorded.
    ///
    /// A repeated call counts once if both calls have the same [idempotency key](crate::request::Acquire::idempotency_key).
    Timeout,
    /// The value that the store holds for this key is not a valid log. [`reset`](crate::Limiter::reset) removes it.
    Corrupt,
    /// The store's facts contradict each other or the policy: the store has a bug, or another program writes to its data.
    Inconsistent,
    /// A held slot is lost: its entry is gone, or no renewal has succeeded in time. The work that held it has been dropped.
    SlotLost,
    /// The configuration is wrong: an invalid address or credential, or a missing permission, feature or timer.
    Configuration,
}

impl ErrorKind {
    /// Returns the kind in snake case, for logs and metrics: `"unavailable"`, for instance.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidLimit => "invalid_limit",
            Self::InvalidTimestamp => "invalid_timestamp",
            Self::InvalidCost => "invalid_cost",
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::NeedsExactLimit => "needs_exact_limit",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Corrupt => "corrupt",
            Self::Inconsistent => "inconsistent",
            Self::SlotLost => "slot_lost",
            Self::Configuration => "configuration",
        }
    }
}

/// Writes [`as_str`](ErrorKind::as_str).
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// Returns an error of this kind.
    ///
    /// The message should state what failed, where and why, and what was expected. It must not contain a key.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            log: None,
        }))
    }

    /// Records which log the failed operation used, unless the error contains one.
    #[must_use]
    pub fn with_log(mut self, log: LogKey<'_>) -> Self {
        let new = || (log.name.as_str(), log.key.to_vec());
        self.0.log.get_or_insert_with(new);
        self
    }

    /// Returns an error with the same kind and text about no log.
    pub(crate) fn without_log(&self) -> Self {
        Self::new(self.0.kind, &*self.0.message)
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the key of the failed operation. `None` if the error is not about one key.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.log.as_ref().map(|(_, key)| &**key)
    }

    /// Returns the name of the limiter whose operation failed. `None` if the error is not about one key.
    pub fn limiter_name(&self) -> Option<&str> {
        self.0.log.as_ref().map(|(name, _)| *name)
    }

    /// Returns `true` if the same call may succeed later, that is, for [`ErrorKind::Unavailable`] and
    /// [`ErrorKind::Timeout`].
    ///
    /// A repeated call may count twice unless it carries the same idempotency key.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind)
            .field("message", &self.0.message);
        if let Some(name) = self.limiter_name() {
            out.field("limiter", &name);
        }
        out.finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.limiter_name() {
            write!(f, "limiter \"{}\": ", name.escape_debug())?;
        }
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

/// Quotes at most the first 60 characters of `text` for an error message.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    let ellipsis = if start.len() < text.len() { "…" } else { "" };
    format!("\"{}{ellipsis}\"", start.escape_debug())
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
        let debug = format!("{error:?} {log:?}");
        assert!(!debug.contains("203"), "{debug}");
        assert_eq!(error.key(), Some(&b"203.0.113.7"[..]));
        assert_eq!(error.limiter_name(), Some("login"));
        assert!(error.is_retryable() && !Error::new(ErrorKind::Corrupt, "").is_retryable());
    }
}
