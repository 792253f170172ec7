//! Reads URLs, with errors that show no credentials.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use limiter_core::Error;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use super::PostgresUrl;
use crate::failure::configuration;

const EXPECTED: &str = "expected postgres:// or postgresql:// with a host or a socket's folder";
/// The most connections that a table opens by itself.
const CONNECTIONS: usize = 8;
const MOST_CONNECTIONS: usize = 1_000;
/// A connection on which the network loses everything for this long is closed.
const SILENCE: Duration = Duration::from_secs(10);
/// What to do in place of an option.
const ADVICE: [(&str, &str); 6] = [
    (
        "load_balance_hosts",
        "leave it out: a connection goes to the first host that accepts writes",
    ),
    ("pgbouncer", "leave it out: PgBouncer needs no option"),
    ("schema", "write options=-csearch_path%3DNAME"),
    (
        "sslcert",
        "pass the file with --store-tls-cert, or its text to PostgresUrl::certificates",
    ),
    (
        "sslkey",
        "pass the file with --store-tls-key, or its text to PostgresUrl::certificates",
    ),
    (
        "sslrootcert",
        "pass the file with --store-tls-ca, or its text to PostgresUrl::certificates",
    ),
];

pub(super) fn parse(url: &str) -> Result<PostgresUrl, Error> {
    if url.starts_with(['"', '\'']) {
        let text = format!("{EXPECTED}: write the URL without quotes");
        return Err(configuration(text));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if !["postgres", "postgresql"].contains(&scheme) {
        let is_shown = |c: char| c.is_ascii_alphanumeric() || "+-.:".contains(c);
        let found = match scheme {
            "" => String::new(),
            _ if scheme.len() < 30 && scheme.chars().all(is_shown) => {
                format!(", found {scheme}://")
            }
            _ => ", found a different scheme".to_owned(),
        };
        return Err(configuration(format!("{EXPECTED}{found}")));
    }
    let failed = |text: &str| configuration(format!("{scheme}://…: {text}"));
    let after_hosts = rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]);
    if after_hosts.contains(['@', '#']) {
        return Err(failed(
            "percent-encode the user and the password: `/` as %2F, `?` as %3F, `#` as %23, `@` as %40",
        ));
    }
    let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
    let mut ssl = None;
    let mut connections = None;
    let mut password = None;
    let mut passed = Vec::new();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "sslmode" if ssl.is_none() => ssl = Some(value),
            "sslmode" => return Err(failed(SSL_MODES)),
            "pool" => connections = Some(value),
            "password_file" => {
                // Any option with a text is decoded.
                let decoded = config(&format!("{scheme}://host?application_name={value}"))?;
                password = decoded.get_application_name().map(PathBuf::from);
            }
            _ => match ADVICE.iter().find(|(unknown, _)| *unknown == name) {
                Some((_, advice)) => {
                    return Err(failed(&format!("unknown option `{name}`: {advice}")));
                }
                None => passed.push(option),
            },
        }
    }
    let is_tls = match ssl {
        None | Some("disable") => false,
        Some("require" | "verify-full") => true,
        Some(_) => return Err(failed(SSL_MODES)),
    };
    if is_tls && cfg!(not(feature = "tls")) {
        let text = "sslmode needs the feature `postgres-tls` of the crate `exact-limiter`";
        return Err(failed(text));
    }
    let connections = match connections.map(str::parse) {
        None => CONNECTIONS,
        Some(Ok(connections)) if (1..=MOST_CONNECTIONS).contains(&connections) => connections,
        Some(_) => return Err(failed("expected pool=N, with N from 1 to 1000")),
    };
    if let Some(file) = &password {
        let read = std::fs::read_to_string(file);
        read.map_err(|error| failed(&format!("password_file={}: {error}", file.display())))?;
    }
    // Each host is a separate configuration, so that none takes the time of the others.
    let (authority, database) = address.split_at(address.find('/').unwrap_or(address.len()));
    let (user, hosts) = match authority.rfind('@') {
        Some(end) => authority.split_at(end + 1),
        None => ("", authority),
    };
    let passed = passed.join("&");
    let hosts = hosts.split(',').map(|host| {
        let mut config = config(&format!("{scheme}://{user}{host}{database}?{passed}"))?;
        config.ssl_mode(if is_tls {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        if !passed.contains("target_session_attrs=") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if !passed.contains("application_name=") {
            config.application_name("limiter");
        }
        if !passed.contains("tcp_user_timeout=") {
            config.tcp_user_timeout(SILENCE);
        }
        if !passed.contains("keepalives") {
            config.keepalives_idle(SILENCE);
        }
        Ok(config)
    });
    Ok(PostgresUrl {
        hosts: hosts.collect::<Result<_, Error>>()?,
        connections,
        password,
        #[cfg(feature = "tls")]
        certificates: crate::tls::Certificates::default(),
    })
}

const SSL_MODES: &str = "expected one sslmode: disable, require or verify-full";

fn config(url: &str) -> Result<Config, Error> {
    let config = url.parse::<Config>().map_err(|error| {
        // Other reasons quote the URL.
        let reason = error.source().map(ToString::to_string);
        let shown = ["invalid value", "unknown option"];
        let reason = reason.filter(|reason| shown.iter().any(|shown| reason.starts_with(shown)));
        let reason = reason.unwrap_or_else(|| "malformed".to_owned());
        configuration(format!("{EXPECTED}: {reason}"))
    })?;
    match config.get_hosts() {
        [] => Err(configuration(EXPECTED.to_owned())),
        [_] => Ok(config),
        // They would share the time for connecting.
        _ => Err(configuration(format!(
            "{EXPECTED}: write several hosts before the path, as in postgres://a,b/database"
        ))),
    }
}
