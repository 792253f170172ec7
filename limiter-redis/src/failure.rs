//! The kind of a failure, and whether to retry.

use limiter_core::{Error, ErrorKind};
use redis::RedisError;

use crate::script;
use crate::url::{malformed, shown};

/// A command that failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// No response in time.
    Timeout,
    /// An error from the server or the client.
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

/// What the codes of a server's errors mean: whether a repetition may succeed, and the kind of the error.
const CODES: [(&str, Repeat, ErrorKind); 19] = [
    // It executes no commands for the moment.
    ("LOADING", Repeat::Safe, ErrorKind::Unavailable),
    ("CLUSTERDOWN", Repeat::Safe, ErrorKind::Unavailable),
    ("MASTERDOWN", Repeat::Safe, ErrorKind::Unavailable),
    ("BUSY", Repeat::Safe, ErrorKind::Unavailable),
    ("READONLY", Repeat::Safe, ErrorKind::Unavailable),
    // It refuses the command until its state changes.
    ("OOM", Repeat::Never, ErrorKind::Unavailable),
    ("MISCONF", Repeat::Never, ErrorKind::Unavailable),
    ("NOREPLICAS", Repeat::Never, ErrorKind::Unavailable),
    ("MOVED", Repeat::Never, ErrorKind::Unavailable),
    ("ASK", Repeat::Never, ErrorKind::Unavailable),
    ("TRYAGAIN", Repeat::Never, ErrorKind::Unavailable),
    // It refuses this user or this command.
    ("NOAUTH", Repeat::Never, ErrorKind::Configuration),
    ("WRONGPASS", Repeat::Never, ErrorKind::Configuration),
    ("NOPERM", Repeat::Never, ErrorKind::Configuration),
    ("CROSSSLOT", Repeat::Never, ErrorKind::Configuration),
    ("DENIED", Repeat::Never, ErrorKind::Configuration),
    ("WRONGTYPE", Repeat::Never, ErrorKind::Corrupt),
    // Codes of the scripts: `lua/entry.lua` and `lua/evaluate.lua`.
    ("DAMAGED", Repeat::Never, ErrorKind::Corrupt),
    ("UNKNOWN", Repeat::Never, ErrorKind::Timeout),
];
/// Codes of a server that a new connection to the same address may no longer reach: a replica, a former master without replicas,
/// and a server that no longer knows the user.
const DEPOSED_CODES: [&str; 4] = ["READONLY", "MASTERDOWN", "NOREPLICAS", "NOAUTH"];
/// Texts of plain `ERR` replies that a retry would receive again.
const MISCONFIGURED_TEXTS: [&str; 7] = [
    "ACL failure in script",
    "can't run this command",
    "can't access at least one of the keys",
    "nknown command",
    "invalid password",
    "DB index is out of range",
    "cluster support disabled",
];
/// What to do about some texts, for the messages of errors.
const HINTS: [(&str, &str); 6] = [
    ("ACL failure in script", PERMISSIONS),
    ("has no permissions", PERMISSIONS),
    ("No permissions to access", PERMISSIONS),
    ("can't run this command", PERMISSIONS),
    (
        "cluster support disabled",
        "; the server is not a node of a Redis Cluster, so the URL must begin with redis://",
    ),
    (
        "DB index is out of range",
        "; the database number in the URL is too large",
    ),
];
const PERMISSIONS: &str = "; grant the user the keys and commands that limiter-redis' documentation lists under \"Permissions\"";
/// Where a server begins to quote a command's arguments, and so the key.
const BEFORE_ARGUMENTS: &str = ", with args beginning with";

impl Failure {
    pub(crate) fn is_no_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("NOSCRIPT"))
    }

    /// Whether the keys of the command are not all on this server, though each alone may be.
    pub(crate) fn is_split(&self) -> bool {
        matches!(self, Self::Redis(error) if has_code(error, &["CROSSSLOT", "TRYAGAIN"]))
    }

    /// Whether the server refuses every command with several such keys.
    pub(crate) fn is_cross_slot(&self) -> bool {
        matches!(self, Self::Redis(error) if has_code(error, &["CROSSSLOT"]))
    }

    pub(crate) fn repeat(&self) -> Repeat {
        match self {
            Self::Timeout => Repeat::Ambiguous,
            Self::Redis(error) => match error.kind() {
                redis::ErrorKind::Io if error.is_connection_refusal() => Repeat::Safe,
                redis::ErrorKind::Io | redis::ErrorKind::Parse => Repeat::Ambiguous,
                redis::ErrorKind::ClusterConnectionNotFound
                | redis::ErrorKind::MasterNameNotFoundBySentinel => Repeat::Safe,
                _ => meaning(error).map_or(Repeat::Never, |(repeat, _)| repeat),
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
            redis::ErrorKind::Io | redis::ErrorKind::ClusterConnectionNotFound => {
                ErrorKind::Unavailable
            }
            redis::ErrorKind::AuthenticationFailed | redis::ErrorKind::InvalidClientConfig => {
                ErrorKind::Configuration
            }
            _ => match meaning(error) {
                Some((_, kind)) => kind,
                None if MISCONFIGURED_TEXTS.iter().any(|part| text.contains(part)) => {
                    ErrorKind::Configuration
                }
                None => ErrorKind::Unavailable,
            },
        }
    }

    /// Returns the error for a caller who could not connect.
    pub(crate) fn into_connect_error(self, url: &str) -> Error {
        let kind = self.kind();
        match self {
            Self::Redis(error) if error.kind() == redis::ErrorKind::InvalidClientConfig => {
                malformed(url, &error)
            }
            Self::Timeout => {
                Error::new(kind, format!("{}: cannot connect: {TIMED_OUT}", shown(url)))
            }
            Self::Redis(error) => {
                let text = error.to_string();
                let hint = hint(&text);
                Error::new(
                    kind,
                    format!("{}: cannot connect: {text}{hint}", shown(url)),
                )
            }
        }
    }

    /// Returns the error for a caller whose command was about these Redis keys, which the error does not show.
    pub(crate) fn into_error(self, stored: &[&[u8]]) -> Error {
        let kind = self.kind();
        let text = match self {
            Self::Redis(error) => error.to_string(),
            Self::Timeout => return Error::new(kind, format!("Redis failed: {TIMED_OUT}")),
        };
        let message = match kind {
            ErrorKind::Corrupt => "the Redis key does not hold a log; a reset removes it",
            _ => "Redis failed",
        };
        // The client's error prints all of its text, and so do its sources.
        let reason = without_key(&text, stored);
        Error::new(kind, format!("{message}: {reason}{}", hint(&text)))
    }
}

/// Without the time that was left, so that a log can drop repetitions.
const TIMED_OUT: &str = "timed out";

fn hint(text: &str) -> String {
    let hint = HINTS.iter().find(|(part, _)| text.contains(part));
    let hint = hint.map_or("", |(_, hint)| hint);
    match script::commands_at(text).filter(|_| hint == PERMISSIONS) {
        Some(commands) => format!("; the refused command is {commands}{hint}"),
        None => hint.to_owned(),
    }
}

/// Returns a server's text, or the part of it that does not contain the key.
fn without_key<'a>(text: &'a str, stored: &[&[u8]]) -> &'a str {
    let text = text.split(BEFORE_ARGUMENTS).next().unwrap_or_default();
    let tag = |stored: &&[u8]| {
        stored
            .iter()
            .position(|byte| *byte == b'{')
            .map(|start| stored[start..].to_vec())
    };
    let is_shown = |tag: Vec<u8>| text.contains(&*String::from_utf8_lossy(&tag));
    if stored.iter().filter_map(tag).any(is_shown) {
        "its message is withheld because it quotes the key"
    } else {
        text
    }
}

/// Whether the server refuses this user or this command.
#[cfg(feature = "sentinel")]
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || meaning(error).is_some_and(|(_, kind)| kind == ErrorKind::Configuration)
}

/// Whether another server may have taken over, so that the address has to be looked up again.
pub(crate) fn is_deposed(error: &RedisError) -> bool {
    has_code(error, &DEPOSED_CODES)
}

/// Returns the row of [`CODES`] for an error. `None` if its code, such as `ERR`, is not in it.
fn meaning(error: &RedisError) -> Option<(Repeat, ErrorKind)> {
    let row = CODES.iter().find(|(code, ..)| has_code(error, &[*code]))?;
    Some((row.1, row.2))
}

/// Whether the reply has any of these codes. From within a script, a code follows `ERR`, or up to Redis 6.2 a dash or a colon in the text.
fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    if error.code().is_some_and(|code| codes.contains(&code)) {
        return true;
    }
    let text = error.detail().unwrap_or_default();
    let has_code = |code: &&str| {
        text.starts_with(&format!("{code} "))
            || ["-", ": "]
                .iter()
                .any(|before| text.contains(&format!("{before}{code} ")))
    };
    codes.iter().any(has_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_timeouts_have_one_text() {
        let text = Failure::Timeout.into_error(&[]).to_string();
        assert_eq!(text, "Redis failed: timed out");
        let text = Failure::Timeout.into_connect_error("redis://h").to_string();
        assert!(text.ends_with("cannot connect: timed out"), "{text}");
    }

    /// Returns the error of a server's reply.
    fn server(text: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    /// In front, after `ERR`, within the text as up to Redis 6.2, and nowhere.
    #[test]
    fn the_code_of_a_reply_decides() {
        use ErrorKind::{Configuration, Corrupt, Timeout, Unavailable};
        for (text, repeat, kind) in [
            ("LOADING the dataset", Repeat::Safe, Unavailable),
            ("ERR DAMAGED a member of 3", Repeat::Never, Corrupt),
            ("ERR in f_1: @1: -OOM used", Repeat::Never, Unavailable),
            ("ERR in f_1: UNKNOWN too many", Repeat::Never, Timeout),
            ("ERR unknown command", Repeat::Never, Configuration),
            ("ERR it is LOADING", Repeat::Never, Unavailable),
        ] {
            let failure = Failure::Redis(server(text));
            assert_eq!((failure.repeat(), failure.kind()), (repeat, kind), "{text}");
        }
    }

    #[test]
    fn an_error_prints_the_text_of_the_client_once() {
        let io =
            || std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let no_node = redis::ErrorKind::ClusterConnectionNotFound;
        for (source, last) in [
            (RedisError::from(io()), "connection refused"),
            (
                RedisError::from((no_node, "no node is known")),
                "no node is known",
            ),
            (server("OOM used memory > 'maxmemory'."), "maxmemory"),
            (server("WRONGTYPE the wrong kind of value"), "wrong kind"),
            (server("DAMAGED a member of 3 bytes"), "3 bytes"),
        ] {
            let again = RedisError::clone(&source);
            for error in [
                Failure::Redis(source).into_error(&[b"limiter:1:{a:b}"]),
                Failure::Redis(again).into_connect_error("redis://h"),
            ] {
                let text = error.to_string();
                let is_once = text.matches(last).count() == 1;
                assert!(text.len() > last.len() && is_once, "{text}");
            }
        }
    }

    #[test]
    fn texts_that_quote_the_key_are_cut_or_withheld() {
        let stored: &[&[u8]] = &[b"limiter:1:{login:203.0.113.7}"];
        let unknown = "unknown command 'EVALSHA', with args beginning with: 'f00' '1' 'limiter:1:{login:203.0";
        assert_eq!(without_key(unknown, stored), "unknown command 'EVALSHA'");
        assert!(!without_key("no such key: limiter:1:{login:203.0.113.7}", stored).contains("203"));
        assert_eq!(
            without_key("OOM command not allowed", stored),
            "OOM command not allowed"
        );
        assert_eq!(without_key("any text", &[]), "any text");
    }
}
