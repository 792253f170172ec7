//! What went wrong, and whether to try again.

use limiter_core::{Error, ErrorKind};
use redis::RedisError;

use crate::url::shown;

/// A command that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No answer in time.
    Timeout,
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

/// Codes of a server that executes no commands at the moment.
const PASSING: [&str; 6] = ["LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "READONLY"];
const UNAVAILABLE: [&str; 5] = ["OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK"];
const REFUSED: [&str; 5] = ["NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "DENIED"];
/// Texts of plain `ERR` answers that a repetition would get again.
const MISCONFIGURED: [&str; 7] = [
    "ACL failure in script",
    "can't run this command",
    "can't access at least one of the keys",
    "nknown command",
    "invalid password",
    "DB index is out of range",
    "cluster support disabled",
];
/// Where a server begins to quote the arguments of a command, and so the key.
const QUOTED: &str = ", with args beginning with";

impl Failure {
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("NOSCRIPT"))
    }

    pub(crate) fn repeat(&self) -> Repeat {
        match self {
            Self::Timeout => Repeat::Ambiguous,
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
            Self::Timeout => return ErrorKind::Timeout,
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

    /// Returns the error for a caller who could not connect.
    pub(crate) fn into_connect_error(self, url: &str) -> Error {
        let (kind, url) = (self.kind(), shown(url));
        match self {
            Self::Timeout => Error::new(kind, format!("{url}: no connection in time")),
            Self::Redis(error) => Error::new(kind, format!("{url}: {error}")).with_source(error),
        }
    }

    /// Returns the error for a caller whose command was about the Redis key `stored`, which the error does not show.
    pub(crate) fn into_error(self, stored: &[u8]) -> Error {
        let kind = self.kind();
        let Self::Redis(source) = self else { return Error::new(kind, "Redis did not answer in time") };
        let text = source.to_string();
        let hidden = without_key(&text, stored);
        let message = match kind {
            ErrorKind::Corrupt => format!("what Redis holds under the key is no log; a reset removes it: {hidden}"),
            _ => format!("Redis failed: {hidden}"),
        };
        let error = Error::new(kind, message);
        // The source prints its own text.
        if hidden == text { error.with_source(source) } else { error }
    }
}

/// Returns a server's text, or the part of it that shows nothing of the key.
fn without_key<'a>(text: &'a str, stored: &[u8]) -> &'a str {
    let text = text.split(QUOTED).next().unwrap_or_default();
    let tag = stored.iter().position(|byte| *byte == b'{').map(|start| &stored[start..]);
    let is_shown = tag.is_some_and(|tag| text.contains(&*String::from_utf8_lossy(tag)));
    if is_shown { "its message is withheld because it quotes the key" } else { text }
}

/// Whether the answer has one of these codes. Up to Redis 6.2, a code from within a script follows a dash in the text.
fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    if error.code().is_some_and(|code| codes.contains(&code)) {
        return true;
    }
    let text = error.detail().unwrap_or_default();
    codes.iter().any(|code| text.contains(&format!("-{code} ")) || text.contains(&format!(": {code} ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_quote_the_key_are_cut_or_withheld() {
        let stored = b"limiter:{login:203.0.113.7}";
        let unknown = "unknown command 'EVALSHA', with args beginning with: 'f00' '1' 'limiter:{login:203.0";
        assert_eq!(without_key(unknown, stored), "unknown command 'EVALSHA'");
        assert!(!without_key("no such key: limiter:{login:203.0.113.7}", stored).contains("203"));
        assert_eq!(without_key("OOM command not allowed", stored), "OOM command not allowed");
        assert_eq!(without_key("any text", b""), "any text");
    }
}
