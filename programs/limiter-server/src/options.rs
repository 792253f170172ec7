//! The command line.

use std::ffi::OsString;
use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use limiter_core::Window;
use rustls::pki_types::ServerName;

use crate::migration::Pod;
use crate::service::{Headers, Unmatched};
use crate::store::{Location, LocationParser, OnOutage};
use crate::xds::settings::Settings;

/// Exact rate limits for Envoy and for programs in any language.
///
/// Serves Envoy's rate limit protocol over gRPC and HTTP, with the configuration files of Envoy's own service. Windows slide:
/// while the store is up, no window admits more than its limit.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Options {
    /// The command to run instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The options for serving.
    #[command(flatten)]
    pub serve: Option<Serve>,
}

impl Options {
    /// Returns the command, in which each option is also a variable: `--max-keys` is `LIMITER_MAX_KEYS`. Templates of containers leave
    /// variables empty, which then have no effect.
    #[must_use]
    pub fn with_variables() -> clap::Command {
        let is_empty = |name: &String| std::env::var_os(name).is_some_and(|value| value.is_empty());
        Self::command().mut_args(|argument| {
            let name = argument.get_long().map(variable);
            match name.filter(|name| !is_empty(name)) {
                Some(name) => argument.env(name).hide_env(true),
                None => argument,
            }
        })
    }

    /// Reads the command line and the environment, with the variables of Envoy's service. Ends the program if they make no sense.
    #[must_use]
    pub fn read(pod: Result<Pod, String>) -> Self {
        // The variables are those of the server: a container's must not stop `check`.
        let of_line = Self::command().try_get_matches().ok();
        let of_line = of_line.filter(|matches| matches.subcommand().is_some());
        let read = |matches| Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Some(matches) = of_line {
            return read(matches);
        }
        let mut command = Self::with_variables();
        let pod = pod.unwrap_or_else(|text| command.error(ErrorKind::InvalidValue, text).exit());
        let is_set =
            |option: &str| std::env::var_os(variable(option)).is_some_and(|it| !it.is_empty());
        let chosen = pod.options.iter().filter(|(option, _)| !is_set(option));
        let chosen = chosen.map(|(option, value)| match value {
            Some(value) => format!("--{option}={value}").into(),
            None => OsString::from(format!("--{option}")),
        });
        let mut line = std::env::args_os();
        let name = line.next().unwrap_or_default();
        // The options of the command line follow, and win.
        let arguments = iter::once(name).chain(chosen).chain(line);
        let has_rules = pod.xds.is_some();
        if !pod.options.is_empty() {
            command = command.args_override_self(true);
        }
        let command = command.mut_arg("config", |it| it.required(!has_rules));
        let mut options = read(command.get_matches_from(arguments));
        if let Some(serve) = &mut options.serve {
            (serve.xds, serve.metrics, serve.level) = (pod.xds, pod.metrics, pod.level);
        }
        options
    }
}

fn variable(option: &str) -> String {
    format!("LIMITER_{}", option.replace('-', "_").to_uppercase())
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines of text.
    #[default]
    Text,
    /// A JSON object on each line.
    Json,
}

/// What makes health checks fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Unhealthy {
    /// The store is down.
    StoreDown,
    /// No rule is loaded.
    NoRules,
}

/// The program's other commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reads a configuration and prints its rules as a table. Exit status 1 and all errors if it has any.
    Check {
        /// A file, or a folder of *.yaml and *.yml files
        path: PathBuf,
        /// Reads the files as refinements of rules that arrive by xDS
        #[arg(long)]
        refinements: bool,
    },
}

/// The options of the server.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// The configuration: a file, or a folder of `*.yaml` and `*.yml`; the log lists other files in the folder. Reloaded 200 ms
    /// after the last change, or after 2 s of changes, and on SIGHUP
    #[arg(long, value_name = "PATH", required = true)]
    pub config: Option<PathBuf>,
    /// The control plane that sends the rules, instead of files.
    #[arg(skip)]
    pub xds: Option<Settings>,
    /// The address of a listener for metrics alone.
    #[arg(skip)]
    pub metrics: Option<String>,
    /// The level of the log without `RUST_LOG`. Default: `info`.
    #[arg(skip)]
    pub level: Option<String>,
    /// The store: `memory`, or a URL with `redis://`, `rediss://`, `redis+unix://`, `redis+cluster://`, `rediss+cluster://`,
    /// `redis+sentinel://`, `rediss+sentinel://` or `postgres://`. A variable keeps its password off the command line
    #[arg(long, value_name = "URL", default_value = "memory", value_parser = LocationParser)]
    pub store: Location,
    /// The authorities in PEM that must have signed the certificates of the store's servers, for `rediss` URLs and for `postgres` URLs
    /// with `sslmode=require`. Default: the system's
    #[arg(long, value_name = "FILE")]
    pub store_tls_ca: Option<PathBuf>,
    /// The certificate chain in PEM that this server shows to the store
    #[arg(long, value_name = "FILE", requires = "store_tls_key")]
    pub store_tls_cert: Option<PathBuf>,
    /// The private key of this certificate in PEM
    #[arg(long, value_name = "FILE", requires = "store_tls_cert")]
    pub store_tls_key: Option<PathBuf>,
    /// The first part of the keys in Redis. Servers with different prefixes share no limits
    #[arg(long, value_name = "TEXT", default_value = limiter_redis::DEFAULT_PREFIX)]
    pub prefix: String,
    /// The timeout of a call to the store. `--on-outage` decides if a call fails or takes longer, and without a call after five
    /// failures in a row
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "300ms")]
    pub store_timeout: Duration,
    /// The time from one probe of the store to the next. Probes detect outages and recovery without traffic; choose a long time for a
    /// database that sleeps when idle
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub store_probe: Duration,
    /// The maximum number of keys in memory, including the fallback's; see [Memory](#memory)
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub max_keys: usize,
    /// The file in which counts in memory survive a restart. Loaded at the start; saved on SIGTERM and every `--state-interval`
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// The time from one save to the next. After a crash, what was admitted since the last save counts no more
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub state_interval: Duration,
    /// How to decide while the store is down: in memory, always open, always closed, or by an error. With `open`, requests fail
    /// while the store refuses decisions, as after a changed password
    #[arg(long, alias = "outage", value_enum, default_value_t)]
    pub on_outage: OnOutage,
    /// How to treat descriptors that match no rule: allow them, deny them, or refuse the request. The metric
    /// `limiter_server_unmatched_total` counts them
    #[arg(long, value_enum, default_value_t)]
    pub unmatched: Unmatched,
    /// The timeout of callers that send no `grpc-timeout`, such as users of `/json`; for example `20ms`. If the store has not
    /// responded after three quarters of it, `--on-outage` decides. Unspecified, there is no bound
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub caller_timeout: Option<Duration>,
    /// The header fields of responses: the IETF's `ratelimit` and `ratelimit-policy`; with `legacy`, `ratelimit-limit`,
    /// `ratelimit-remaining` and `ratelimit-reset` of older drafts; with `x-ratelimit`, the same three with `x-` in front; or none
    #[arg(long, value_enum, default_value_t)]
    pub headers: Headers,
    /// The gRPC listener: Envoy's protocol, health checking, reflection. Port 0 chooses a free port; `unix:PATH` is a Unix socket
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = "127.0.0.1:8081")]
    pub grpc: String,
    /// The HTTP listener: `/json`, `/v1/…`, `/healthz`, `/healthcheck`
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = "127.0.0.1:8080")]
    pub http: String,
    /// The admin listener: the page, `/metrics`, `/rules`, `POST /reset`. Except on loopback, it needs `--tls-cert` or
    /// `--admin-plain`
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = "127.0.0.1:6070")]
    pub admin: String,
    /// The maximum number of connections per listener. Excess ones are closed after a second, long enough for a health check
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub max_connections: usize,
    /// The maximum number of these connections from one address, or from one /64 of IPv6
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub max_connections_per_address: usize,
    /// The age at which a connection is told to end, give or take a tenth. Its client connects again, perhaps to a new server.
    /// Unspecified, connections may last
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub max_connection_age: Option<Duration>,
    /// How long requests of such a connection may take before it is closed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub max_connection_age_grace: Duration,
    /// What makes the health checks fail. By default they succeed, because `--on-outage` decides while the store is down
    #[arg(long, value_enum, value_delimiter = ',')]
    pub unhealthy_when: Vec<Unhealthy>,
    /// The format of the log, on stderr. The variable `RUST_LOG` sets its level, such as `warn`
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Other host names of the admin listener. IP addresses and `localhost` are always accepted. Repeatable
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub admin_host: Vec<String>,
    /// The token for resets; except on loopback, the whole admin listener requires it: `authorization: Bearer TOKEN`, or the password
    /// in the browser's dialog. Without a token, an admin listener on other addresses refuses resets. A changed file is reloaded, as on
    /// SIGHUP
    #[arg(long, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Serves the admin listener without TLS, where nobody can read its token on the network
    #[arg(long)]
    pub admin_plain: bool,
    /// Serves HTTP without TLS while gRPC has TLS, as Envoy's own service does, so that plain probes and clients of `/json` and `/v1`
    /// need no certificate
    #[arg(long, requires = "tls_cert")]
    pub http_plain: bool,
    /// The certificate chain in PEM, for TLS on all listeners but those of `--http-plain` and `--admin-plain`. Changed files are reloaded, as on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The authorities in PEM that must have signed the clients' certificates, for mutual TLS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// The host names or IP addresses of which a client's certificate must contain one. Repeatable
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = client_name,
        requires = "tls_client_ca"
    )]
    pub tls_client_name: Vec<String>,
}

/// What the address of a Unix socket begins with.
pub(crate) const UNIX: &str = "unix:";

fn address(text: &str) -> Result<String, String> {
    if text.strip_prefix(UNIX).is_some_and(|path| !path.is_empty()) {
        return Ok(text.to_owned());
    }
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .map(|(_, port)| port.parse::<u16>());
    if matches!(port, Some(Ok(_))) {
        Ok(text.to_owned())
    } else {
        Err("expected HOST:PORT or unix:PATH".to_owned())
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse()
        .map(Window::as_duration)
        .map_err(|error| format!("{error}"))
}

/// Refuses names that match no certificate, such as wildcards and URIs.
fn client_name(text: &str) -> Result<String, String> {
    let expected = |_| "expected a host name without wildcards, or an IP address".to_owned();
    ServerName::try_from(text).map_err(expected)?;
    Ok(text.to_owned())
}
