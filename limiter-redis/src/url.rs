//! URLs: which kind they are, and how to print them without their credentials.

use limiter_core::{Error, ErrorKind};

const SCHEMES: &str = "redis://, rediss://, redis+unix://, redis+cluster:// or rediss+cluster://";

/// Checks that a URL has a scheme that this build can connect to.
///
/// # Errors
/// [`ErrorKind::Configuration`] with what to write or to enable.
pub(crate) fn check(url: &str) -> Result<(), Error> {
    let Some((scheme, _)) = url.split_once("://") else {
        let text = format!("{} has no scheme: write {}", shown(url), with_scheme(url));
        return Err(Error::new(ErrorKind::Configuration, text));
    };
    let missing = match scheme {
        "rediss" | "rediss+cluster" if cfg!(not(feature = "tls")) => "redis-tls",
        "redis+cluster" | "rediss+cluster" if cfg!(not(feature = "cluster")) => "redis-cluster",
        _ => return Ok(()),
    };
    let text = format!("{} needs the feature `{missing}` of the crate `limiter`", shown(url));
    Err(Error::new(ErrorKind::Configuration, text))
}

/// Returns the error for a URL that cannot be parsed.
pub(crate) fn malformed(url: &str, reason: &impl std::fmt::Display) -> Error {
    let text = format!("{}: expected {SCHEMES} with a host and port or a path: {reason}", shown(url));
    Error::new(ErrorKind::Configuration, text)
}

/// Returns the URLs of the nodes of `redis+cluster://user:password@host:port,host:port`, `None` for another scheme.
pub(crate) fn cluster_nodes(url: &str) -> Option<Vec<String>> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.strip_suffix("+cluster")?;
    let (credentials, hosts) = rest.rsplit_once('@').map_or(("", rest), |(user, hosts)| (user, hosts));
    let at = if credentials.is_empty() { "" } else { "@" };
    Some(hosts.trim_end_matches('/').split(',').map(|host| format!("{scheme}://{credentials}{at}{host}")).collect())
}

/// Describes a URL without its credentials.
pub(crate) fn shown(url: &str) -> String {
    let (scheme, address) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), public(rest, scheme.ends_with("unix"))),
        None => (String::new(), public(url, url.starts_with('/'))),
    };
    format!("Redis URL \"{}{}\"", scheme.escape_debug(), address.escape_debug())
}

/// Returns what follows the scheme without credentials, which are before the last `@`, or after the `?` of a path.
fn public(rest: &str, is_path: bool) -> &str {
    let address = if is_path { rest } else { rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts) };
    address.split('?').next().unwrap_or_default()
}

/// Returns what was probably meant by a URL without a scheme.
fn with_scheme(url: &str) -> String {
    let is_path = url.starts_with('/');
    let scheme = match url {
        _ if is_path => "redis+unix",
        _ if url.contains(',') => "redis+cluster",
        _ => "redis",
    };
    let credentials = if !is_path && url.contains('@') { "user:password@" } else { "" };
    let address = match public(url, is_path) {
        "" => "localhost:6379",
        address => address,
    };
    format!("{scheme}://{credentials}{}", address.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_urls_name_their_nodes() {
        assert_eq!(cluster_nodes("redis://a:1"), None);
        assert_eq!(cluster_nodes("redis+cluster://a:1").unwrap(), ["redis://a:1"]);
        assert_eq!(cluster_nodes("rediss+cluster://u:p@a:1,b:2/").unwrap(), ["rediss://u:p@a:1", "rediss://u:p@b:2"]);
    }

    #[test]
    fn shown_urls_hide_credentials() {
        for (url, expected) in [
            ("redis://u:secret@h:1/0", "redis://h:1/0"),
            ("redis://u:se@cr?et@h:1/0", "redis://h:1/0"),
            ("redis+cluster://u:secret@a:1,b:2", "redis+cluster://a:1,b:2"),
            ("redis+unix:///p?user=u&pass=secret", "redis+unix:///p"),
            ("redis+unix:///p?user=u&pass=se@cret", "redis+unix:///p"),
            ("u:secret@h:1", "h:1"),
            ("/p?pass=secret", "/p"),
        ] {
            assert_eq!(shown(url), format!("Redis URL \"{expected}\""));
        }
    }

    #[test]
    fn a_url_without_a_scheme_is_answered_with_what_to_write() {
        for (url, write) in [
            ("localhost:6379", "redis://localhost:6379"),
            ("127.0.0.1", "redis://127.0.0.1"),
            ("redis", "redis://redis"),
            ("", "redis://localhost:6379"),
            ("u:secret@h:1/2", "redis://user:password@h:1/2"),
            ("a:1,b:2", "redis+cluster://a:1,b:2"),
            ("/run/redis.sock?pass=secret", "redis+unix:///run/redis.sock"),
        ] {
            let error = check(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            let text = error.to_string();
            assert!(text.ends_with(&format!("has no scheme: write {write}")) && !text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_missing_feature_is_named_as_the_facade_names_it() {
        for (url, feature, enabled) in [
            ("rediss://u:secret@h", "redis-tls", cfg!(feature = "tls")),
            ("redis+cluster://u:secret@h", "redis-cluster", cfg!(feature = "cluster")),
        ] {
            match check(url) {
                Ok(()) => assert!(enabled),
                Err(error) => {
                    let text = error.to_string();
                    let expected = format!("needs the feature `{feature}` of the crate `limiter`");
                    assert!(!enabled && text.ends_with(&expected) && !text.contains("secret"), "{text}");
                }
            }
        }
    }
}
