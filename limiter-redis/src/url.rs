//! URLs: which kind they are, and how to print them without their credentials.

use std::fmt;
use std::str::FromStr;

use limiter_core::{Error, ErrorKind};

const SCHEMES: &str = "redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://";

/// The URL of a Redis server, for command lines and configurations.
///
/// Parsing checks the scheme, its feature and the form of the credentials, but not the rest. Neither [`Display`](fmt::Display) nor
/// [`Debug`] prints credentials, and no error does.
///
/// # Examples
/// ```
/// use limiter_redis::RedisUrl;
///
/// let url: RedisUrl = "redis://app:secret@db:6379/1".parse()?;
/// assert_eq!(url.to_string(), "redis://db:6379/1");
/// let error = "REDIS://app:secret@db".parse::<RedisUrl>().unwrap_err();
/// assert!(!error.to_string().contains("secret"));
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// Returns the URL with its credentials, for [`connect`](crate::RedisStoreBuilder::connect).
    #[must_use]
    pub fn with_credentials(&self) -> &str {
        &self.0
    }
}

impl FromStr for RedisUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        check(url).map(|()| Self(url.to_owned()))
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&public(&self.0))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisUrl").field(&public(&self.0)).finish()
    }
}

/// Checks what the client library does not: the scheme, its feature, and credentials that it would take for a path.
///
/// # Errors
/// [`ErrorKind::Configuration`] with what to change.
pub(crate) fn check(url: &str) -> Result<(), Error> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let is_known = match scheme.split_once('+') {
        Some(("redis", "unix")) => true,
        Some(("redis" | "rediss", kind)) => ["cluster", "sentinel"].contains(&kind),
        _ => ["redis", "rediss", "unix"].contains(&scheme),
    };
    if !is_known {
        return Err(configuration(format!("expected {SCHEMES}{}", found(url))));
    }
    for (is_enabled, part, feature) in [
        (cfg!(feature = "tls"), "rediss", "redis-tls"),
        (cfg!(feature = "cluster"), "cluster", "redis-cluster"),
        (cfg!(feature = "sentinel"), "sentinel", "redis-sentinel"),
    ] {
        if scheme.contains(part) && !is_enabled {
            let text = format!("needs the feature `{feature}` of the crate `exact-limiter`");
            return Err(configuration(format!("{} {text}", shown(url))));
        }
    }
    let after_hosts = rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]);
    if after_hosts.contains('@') && !is_path(scheme) {
        let text = "percent-encode the user and the password: `/` as %2F, `?` as %3F, `#` as %23, `@` as %40";
        return Err(configuration(format!("{}: {text}", shown(url))));
    }
    // The client library ignores options that it does not know, such as a misspelt one.
    let options: &[&str] = match scheme {
        _ if is_path(scheme) => &["db", "user", "pass", "protocol"],
        _ if scheme.ends_with("sentinel") => &["sentinel_user", "sentinel_pass", "protocol"],
        _ => &["protocol"],
    };
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let query = query.split('#').next().unwrap_or_default();
    let mut names = query
        .split('&')
        .map(|pair| pair.split('=').next().unwrap_or_default());
    if names.any(|name| !name.is_empty() && !options.contains(&name)) {
        let text = format!("after `?`, expected only {}", options.join(", "));
        return Err(configuration(format!("{}: {text}", shown(url))));
    }
    Ok(())
}

/// Returns the error for a URL that cannot be parsed.
pub(crate) fn malformed(url: &str, reason: &impl fmt::Display) -> Error {
    configuration(format!(
        "{}: expected {SCHEMES} with a host and port or a path: {reason}",
        shown(url)
    ))
}

fn configuration(text: String) -> Error {
    Error::new(ErrorKind::Configuration, text)
}

/// Describes a text that has no scheme of Redis. Any part of it may be a password.
fn found(url: &str) -> String {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    match scheme.as_bytes() {
        [b'"' | b'\'', ..] => ", without quotes around it".to_owned(),
        [] => ", found no scheme".to_owned(),
        bytes if bytes.len() < 20 && bytes.iter().copied().all(is_scheme) => {
            format!(", found {scheme}://")
        }
        _ => String::new(),
    }
}

fn is_path(scheme: &str) -> bool {
    scheme.ends_with("unix")
}

/// Returns the URLs of the nodes of `redis+cluster://user:password@host:port,host:port`, `None` for another scheme.
#[cfg(feature = "cluster")]
pub(crate) fn cluster_nodes(url: &str) -> Option<Vec<String>> {
    let (scheme, credentials, hosts) = parts(url, "+cluster")?;
    Some(
        hosts
            .trim_end_matches('/')
            .split(',')
            .map(|host| format!("{scheme}://{credentials}{host}"))
            .collect(),
    )
}

/// What `redis+sentinel://user:password@host:port,host:port/name/database` connects to.
#[cfg(feature = "sentinel")]
#[derive(Debug, PartialEq)]
pub(crate) struct SentinelUrl<'a> {
    /// The URLs of the sentinels, without credentials.
    pub(crate) sentinels: Vec<String>,
    /// The user and the password for the sentinels, from `?sentinel_user=…&sentinel_pass=…`.
    pub(crate) login: Option<(String, String)>,
    /// The name of the master.
    pub(crate) name: &'a str,
    /// A URL with the credentials and the database of the server, but not its address.
    pub(crate) server: String,
}

/// Returns the parts of a URL with sentinels, `None` for another scheme.
#[cfg(feature = "sentinel")]
pub(crate) fn sentinel(url: &str) -> Option<SentinelUrl<'_>> {
    let (scheme, credentials, rest) = parts(url, "+sentinel")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    let has_port = |host: &str| {
        host.rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    };
    let sentinel = |host| {
        format!(
            "{scheme}://{host}{}",
            if has_port(host) { "" } else { ":26379" }
        )
    };
    let own = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| *key == name)?;
        let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        Some(value.into_owned())
    };
    Some(SentinelUrl {
        sentinels: hosts.split(',').map(sentinel).collect(),
        login: own("sentinel_pass").map(|pass| (own("sentinel_user").unwrap_or_default(), pass)),
        name,
        server: format!("{scheme}://{credentials}server/{database}?{query}"),
    })
}

/// Returns the scheme without its `kind`, the credentials with their `@`, and the rest. `None` for another kind.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
fn parts<'a>(url: &'a str, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (credentials, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
    Some((scheme.strip_suffix(kind)?, credentials, rest))
}

/// Describes a URL without its credentials.
pub(crate) fn shown(url: &str) -> String {
    format!("Redis URL \"{}\"", public(url).escape_debug())
}

/// Returns a URL without credentials: they stand before the last `@`, after a `?`, or where somebody forgot the host.
fn public(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "…".to_owned();
    };
    let address = if is_path(scheme) {
        rest.find('/').map_or("…", |start| &rest[start..])
    } else {
        rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts)
    };
    let address = address.split(['?', '#']).next().unwrap_or_default();
    let hosts = address.split('/').next().unwrap_or_default();
    let is_host = |host: &str| {
        let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
        let port = after.split_once(':').map_or("", |(_, port)| port);
        port.bytes().all(|byte| byte.is_ascii_digit())
    };
    let address = if hosts.split(',').all(is_host) {
        address
    } else {
        "…"
    };
    format!("{scheme}://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "cluster")]
    #[test]
    fn cluster_urls_name_their_nodes() {
        assert_eq!(cluster_nodes("redis://a:1"), None);
        let nodes = cluster_nodes("rediss+cluster://u:p@a:1,b:2/").unwrap();
        assert_eq!(nodes, ["rediss://u:p@a:1", "rediss://u:p@b:2"]);
    }

    #[cfg(feature = "sentinel")]
    #[test]
    fn sentinel_urls_name_the_sentinels_the_master_and_the_database() {
        assert_eq!(sentinel("redis+cluster://a:1"), None);
        for (url, sentinels, login, name, server) in [
            (
                "redis+sentinel://a:1,b/m",
                ["redis://a:1", "redis://b:26379"],
                None,
                "m",
                "redis://server/?",
            ),
            (
                "rediss+sentinel://u:p@[::1],b:2/m/3?sentinel_pass=a%2Fb&protocol=resp3",
                ["rediss://[::1]:26379", "rediss://b:2"],
                Some(("", "a/b")),
                "m",
                "rediss://u:p@server/3?sentinel_pass=a%2Fb&protocol=resp3",
            ),
            (
                "redis+sentinel://a,b?sentinel_user=s&sentinel_pass=t",
                ["redis://a:26379", "redis://b:26379"],
                Some(("s", "t")),
                "",
                "redis://server/?sentinel_user=s&sentinel_pass=t",
            ),
        ] {
            let expected = SentinelUrl {
                sentinels: sentinels.map(str::to_owned).into(),
                login: login.map(|(user, pass)| (user.to_owned(), pass.to_owned())),
                name,
                server: server.to_owned(),
            };
            assert_eq!(sentinel(url), Some(expected));
        }
    }

    #[test]
    fn no_text_shows_credentials() {
        for (url, expected) in [
            ("redis://u:secret@h:1/0", "redis://h:1/0"),
            ("redis://u:se@secret@h:1/0", "redis://h:1/0"),
            ("redis://u:secret", "redis://…"),
            ("redis://:secret/0", "redis://…"),
            ("redis://[::1]:1,[::1]/0", "redis://[::1]:1,[::1]/0"),
            ("redis+cluster://u:secret@a,b", "redis+cluster://a,b"),
            (
                "redis+sentinel://a/m?sentinel_pass=secret",
                "redis+sentinel://a/m",
            ),
            ("redis+unix:///p?user=u&pass=secret", "redis+unix:///p"),
            ("redis+unix:///p?user=u&pass=se@secret", "redis+unix:///p"),
            ("redis+unix://u:secret@/p", "redis+unix:///p"),
            ("u:secret@h:1", "…"),
            ("/p?pass=secret", "…"),
        ] {
            assert_eq!(public(url), expected);
            if let Ok(url) = url.parse::<RedisUrl>() {
                assert_eq!(url.to_string(), expected);
                assert!(!format!("{url:?}").contains("secret"), "{url:?}");
            }
        }
    }

    #[test]
    fn a_url_that_cannot_work_is_refused_with_what_to_change() {
        let encode = "percent-encode the user and the password";
        let quotes = "rediss+sentinel://, without quotes around it";
        for (url, expected) in [
            ("\"redis://u:secret@h\"", quotes),
            ("'redis://u:secret@h'", quotes),
            ("REDIS://u:secret@h", "rediss+sentinel://, found REDIS://"),
            ("u:secret@h:1", "rediss+sentinel://, found no scheme"),
            (
                "secret@redis://h",
                "redis+sentinel:// or rediss+sentinel://",
            ),
            ("redis://u:secret#1@h", encode),
            ("redis://u:1234/secret@h", encode),
            ("redis+cluster://u:secret?1@a,b", encode),
            ("redis+sentinel://u:secret/1@a/m", encode),
            ("redis://h/0?secret=5", "after `?`, expected only protocol"),
            (
                "redis+unix:///p?pass=a&timeout=secret",
                "db, user, pass, protocol",
            ),
        ] {
            let text = url.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(
                text.contains(expected) && !text.contains("secret"),
                "{text}"
            );
        }
        for (scheme, feature, is_enabled) in [
            ("rediss", "redis-tls", cfg!(feature = "tls")),
            ("redis+cluster", "redis-cluster", cfg!(feature = "cluster")),
            (
                "redis+sentinel",
                "redis-sentinel",
                cfg!(feature = "sentinel"),
            ),
        ] {
            let url = &format!("{scheme}://u:secret@h/m");
            let text = check(url).err().map(|error| error.to_string());
            assert_eq!(text.is_none(), is_enabled, "{url}");
            // By the facade's name.
            let expected = format!("needs the feature `{feature}` of the crate `exact-limiter`");
            let is_right = |text: String| text.ends_with(&expected) && !text.contains("secret");
            assert!(text.is_none_or(is_right), "{url}");
        }
    }
}
