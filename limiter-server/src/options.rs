//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use limiter_core::Window;

use crate::service::{Headers, Unmatched};
use crate::store::{Location, LocationParser, OnOutage};

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

/// The program's other commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reads a configuration and prints its rules as a table. Exit status 1 and all errors if it has any.
    Check {
        /// A file, or a folder of *.yaml and *.yml files
        path: PathBuf,
    },
}

/// The options of the server.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// The configuration: a file, or a folder of *.yaml and *.yml files. It is reloaded when it changes, and on SIGHUP
    #[arg(long, value_name = "PATH", env = "LIMITER_CONFIG")]
    pub config: PathBuf,
    /// The store: memory, or a URL that starts with redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://,
    /// redis+sentinel:// or rediss+sentinel://
    #[arg(long, value_name = "URL", env = "LIMITER_STORE", hide_env_values = true, default_value = "memory",
        value_parser = LocationParser)]
    pub store: Location,
    /// The maximum number of keys in memory, including the fallback's. Beyond it, expired keys are evicted first, then those
    /// with the fewest entries
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub max_keys: usize,
    /// How to decide while the store is down
    #[arg(long, alias = "outage", value_enum, default_value_t)]
    pub on_outage: OnOutage,
    /// What to do with descriptors that match no rule: allow or deny them, or refuse the request
    #[arg(long, value_enum, default_value_t)]
    pub unmatched: Unmatched,
    /// The timeout of callers that send no grpc-timeout, such as 20ms. If the store has not responded after three quarters of
    /// it, --on-outage decides [default: no bound]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub caller_timeout: Option<Duration>,
    /// The header fields of responses
    #[arg(long, value_enum, default_value_t)]
    pub headers: Headers,
    /// The address of the gRPC listener. Port 0 chooses a free port
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, default_value = "127.0.0.1:8081")]
    pub grpc: String,
    /// The address of the HTTP listener
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, default_value = "127.0.0.1:8080")]
    pub http: String,
    /// The address of the admin listener: metrics, rules, resets and the page
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, default_value = "127.0.0.1:6070")]
    pub admin: String,
    /// The maximum number of connections per listener. Excess ones are closed after a second, long enough for a health check
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    pub max_connections: usize,
    /// The maximum number of these connections from one address, or from one /64 of IPv6
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub max_connections_per_address: usize,
    /// Another host name of the admin listener, besides IP addresses and localhost. Repeatable
    #[arg(long, value_name = "NAME")]
    pub admin_host: Vec<String>,
    /// A file with the token for resets; beyond loopback, the whole admin listener requires it. Without a token, an admin
    /// listener beyond loopback refuses resets
    #[arg(long, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// The certificate chain in PEM, for TLS on the gRPC and HTTP listeners. TLS files are reloaded when they change, and on
    /// SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The certificates in PEM that must have signed the clients' certificates, for mutual TLS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
}

fn host_and_port(text: &str) -> Result<String, String> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .map(|(_, port)| port.parse::<u16>());
    if matches!(port, Some(Ok(_))) {
        Ok(text.to_owned())
    } else {
        Err("expected HOST:PORT".to_owned())
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse()
        .map(Window::as_duration)
        .map_err(|error| format!("{error}"))
}
