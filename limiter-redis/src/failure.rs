//! What went wrong, and whether to try again.

use limiter_core::{Error, ErrorKind};
use redis::RedisError;

use crate::connection::shown_url;
use crate::key::shown;

/// A command that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No answer in time.
    Late,
    /// An error of the server or the client.
    Redis(RedisError),
}

/// Whether a command can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It would fail again.
    Never,
    /// It was not executed.
    Safe,
    /// It may have been executed.
    Ambiguous,
}

/// Codes of a server that does not execute commands for now.
const PASSING: [&str; 6] = ["LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "READONLY"];
const UNAVAILABLE: [&str; 5] = ["OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK"];
const REFUSED: [&str; 5] = ["NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "DENIED"];
/// Texts of plain `ERR` answers that no repetition helps against.
const MISCONFIGURED: [&str; 7] = [
    "ACL failure in script",
    "can't run this command",
    "can't access at least one of the keys",
    "nknown command",
    "invalid password",
    "DB index is out of range",
    "cluster support disabled",
];

impl Failure {
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("NOSCRIPT"))
    }

    pub(crate) fn repeat(&self) -> Repeat {
        match self {
            Self::Late => Repeat::Ambiguous,
            Self::Redis(error) => match error.kind() {
                redis::ErrorKind::Io if error.is_connection_refusal() => Repeat::Safe,
                redis::ErrorKind::Io | redis::ErrorKind::Parse => Repeat::Ambiguous,
                redis::ErrorKind::ClusterConnectionNotFound => Repeat::Safe,
                _ if has_code(error, &PASSING) => Repeat::Safe,
                _ => Repeat::Never,
            },
        }
    }

    fn kind(&self) -> ErrorKind {
        let error = match self {
            Self::Late => return ErrorKind::Timeout,
            Self::Redis(error) => error,
        };
        let text = error.to_string();
        match error.kind() {
            redis::ErrorKind::Io if error.is_timeout() => ErrorKind::Timeout,
            redis::ErrorKind::Io | redis::ErrorKind::ClusterConnectionNotFound => ErrorKind::Unavailable,
            redis::ErrorKind::AuthenticationFailed | redis::ErrorKind::InvalidClientConfig => ErrorKind::Configuration,
            _ if text.contains("DAMAGED ") || has_code(error, &["WRONGTYPE"]) => ErrorKind::Corrupt,
            _ if text.contains("UNKNOWN too many") => ErrorKind::Timeout,
            _ if has_code(error, &PASSING) || has_code(error, &UNAVAILABLE) => ErrorKind::Unavailable,
            _ if has_code(error, &REFUSED) => ErrorKind::Configuration,
            _ if MISCONFIGURED.iter().any(|part| text.contains(part)) => ErrorKind::Configuration,
            _ => ErrorKind::Unavailable,
        }
    }

    /// The error for a caller who could not connect.
    pub(crate) fn into_connect_error(self, url: &str) -> Error {
        let text = match &self {
            Self::Late => format!("{}: no connection in time", shown_url(url)),
            Self::Redis(error) => format!("{}: {error}", shown_url(url)),
        };
        let error = Error::new(self.kind(), text);
        self.with_source(error)
    }

    fn with_source(self, error: Error) -> Error {
        match self {
            Self::Late => error,
            Self::Redis(source) => error.with_source(source),
        }
    }

    /// The error for the caller.
    pub(crate) fn into_error(self, key: &[u8], stored: &[u8]) -> Error {
        let (kind, user, stored) = (self.kind(), shown(key), shown(stored));
        let text = match (&self, kind) {
            (Self::Late, _) => format!("Redis did not answer in time for key {user}"),
            (Self::Redis(error), ErrorKind::Corrupt) => {
                format!("what Redis holds under {stored} is not the log of key {user} (reset mends it): {error}")
            }
            (Self::Redis(error), _) => format!("Redis failed for key {user}: {error}"),
        };
        self.with_source(Error::new(kind, text))
    }
}

/// Whether the answer is one of these codes. Up to Redis 6.2 a code from within a script is in the text after a dash.
fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    if error.code().is_some_and(|code| codes.contains(&code)) {
        return true;
    }
    let text = error.detail().unwrap_or_default();
    codes.iter().any(|code| text.contains(&format!("-{code} ")) || text.contains(&format!(": {code} ")))
}
