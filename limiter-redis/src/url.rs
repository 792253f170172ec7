//! URLs: which kind they are, and how to print them without their credentials.

use limiter_core::{Error, ErrorKind};

const SCHEMES: &str = "redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://";

/// Returns whether a text is a URL with a scheme of Redis, for arguments that may be something else.
///
/// Whether this build can connect to it, and whether the rest is well-formed, is known only to
/// [`connect_lazy`](crate::RedisStoreBuilder::connect_lazy).
#[must_use]
pub fn is_redis_url(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once("://") else {
        return false;
    };
    let (protocol, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    match protocol {
        "redis" => matches!(kind, "" | "unix" | "cluster" | "sentinel"),
        "rediss" => matches!(kind, "" | "cluster" | "sentinel"),
        _ => scheme == "unix",
    }
}

/// Checks that this build has the feature for a URL's scheme.
///
/// # Errors
/// [`ErrorKind::Configuration`] with the feature to enable.
pub(crate) fn check(url: &str) -> Result<(), Error> {
    let missing = match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        "rediss" | "rediss+cluster" | "rediss+sentinel" if cfg!(not(feature = "tls")) => {
            "redis-tls"
        }
        "redis+cluster" | "rediss+cluster" if cfg!(not(feature = "cluster")) => "redis-cluster",
        "redis+sentinel" | "rediss+sentinel" if cfg!(not(feature = "sentinel")) => "redis-sentinel",
        _ => return Ok(()),
    };
    let text = format!(
        "{} needs the feature `{missing}` of the crate `exact-limiter`",
        shown(url)
    );
    Err(Error::new(ErrorKind::Configuration, text))
}

/// Returns the error for a URL that cannot be parsed.
pub(crate) fn malformed(url: &str, reason: &impl std::fmt::Display) -> Error {
    let text = format!(
        "{}: expected {SCHEMES} with a host and port or a path: {reason}",
        shown(url)
    );
    Error::new(ErrorKind::Configuration, text)
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
    /// The URLs of the sentinels.
    pub(crate) sentinels: Vec<String>,
    /// The name of the master.
    pub(crate) name: &'a str,
    /// A URL with the credentials and the database of the server, but not its address.
    pub(crate) server: String,
}

/// Returns the parts of a URL with sentinels, `None` for another scheme.
#[cfg(feature = "sentinel")]
pub(crate) fn sentinel(url: &str) -> Option<SentinelUrl<'_>> {
    let (scheme, credentials, rest) = parts(url, "+sentinel")?;
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
    let sentinels = hosts.split(',').map(sentinel).collect();
    Some(SentinelUrl {
        sentinels,
        name,
        server: format!("{scheme}://{credentials}server/{database}"),
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
    let (scheme, address) = match url.split_once("://") {
        Some((scheme, rest)) => (
            format!("{scheme}://"),
            public(rest, scheme.ends_with("unix")),
        ),
        None => (String::new(), public(url, url.starts_with('/'))),
    };
    format!(
        "Redis URL \"{}{}\"",
        scheme.escape_debug(),
        address.escape_debug()
    )
}

/// Returns the part after the scheme, without credentials: they stand before the last `@`, or after the `?` of a path.
fn public(rest: &str, is_path: bool) -> &str {
    let address = if is_path {
        rest
    } else {
        rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts)
    };
    address.split('?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "cluster")]
    #[test]
    fn cluster_urls_name_their_nodes() {
        assert_eq!(cluster_nodes("redis://a:1"), None);
        assert_eq!(
            cluster_nodes("redis+cluster://a:1").unwrap(),
            ["redis://a:1"]
        );
        assert_eq!(
            cluster_nodes("rediss+cluster://u:p@a:1,b:2/").unwrap(),
            ["rediss://u:p@a:1", "rediss://u:p@b:2"]
        );
    }

    #[cfg(feature = "sentinel")]
    #[test]
    fn sentinel_urls_name_the_sentinels_the_master_and_the_database() {
        assert_eq!(sentinel("redis+cluster://a:1"), None);
        let expected = |sentinels: [&str; 2], name, server: &str| {
            let sentinels = sentinels.map(str::to_owned).into();
            Some(SentinelUrl {
                sentinels,
                name,
                server: server.to_owned(),
            })
        };
        for (url, parts) in [
            (
                "redis+sentinel://a:1,b/m",
                expected(["redis://a:1", "redis://b:26379"], "m", "redis://server/"),
            ),
            (
                "rediss+sentinel://u:p@[::1],b:2/m/3",
                expected(
                    ["rediss://[::1]:26379", "rediss://b:2"],
                    "m",
                    "rediss://u:p@server/3",
                ),
            ),
            (
                "redis+sentinel://a,b",
                expected(
                    ["redis://a:26379", "redis://b:26379"],
                    "",
                    "redis://server/",
                ),
            ),
        ] {
            assert_eq!(sentinel(url), parts);
        }
    }

    #[test]
    fn shown_urls_hide_credentials() {
        for (url, expected) in [
            ("redis://u:secret@h:1/0", "redis://h:1/0"),
            ("redis://u:se@cr?et@h:1/0", "redis://h:1/0"),
            (
                "redis+cluster://u:secret@a:1,b:2",
                "redis+cluster://a:1,b:2",
            ),
            ("redis+unix:///p?user=u&pass=secret", "redis+unix:///p"),
            ("redis+unix:///p?user=u&pass=se@cret", "redis+unix:///p"),
            ("u:secret@h:1", "h:1"),
            ("/p?pass=secret", "/p"),
        ] {
            assert_eq!(shown(url), format!("Redis URL \"{expected}\""));
        }
    }

    #[test]
    fn a_url_of_another_build_is_refused_with_what_to_enable() {
        for (url, feature, is_enabled) in [
            ("rediss://u:secret@h", "redis-tls", cfg!(feature = "tls")),
            (
                "redis+cluster://u:secret@h",
                "redis-cluster",
                cfg!(feature = "cluster"),
            ),
            (
                "redis+sentinel://u:secret@h/m",
                "redis-sentinel",
                cfg!(feature = "sentinel"),
            ),
        ] {
            let text = check(url).err().map(|error| error.to_string());
            assert_eq!(text.is_none(), is_enabled, "{url}");
            // As the facade names it.
            let expected = format!("needs the feature `{feature}` of the crate `exact-limiter`");
            assert!(
                text.is_none_or(|text| text.ends_with(&expected) && !text.contains("secret")),
                "{url}"
            );
        }
    }
}
