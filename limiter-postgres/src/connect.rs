//! How connections are made.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::{CancelToken, Client, Config, Error};

use crate::failure::{Failed, cause, is_refused_option};

#[cfg(not(feature = "tls"))]
pub(crate) type Tls = tokio_postgres::NoTls;
#[cfg(feature = "tls")]
pub(crate) type Tls = tokio_postgres_rustls::MakeRustlsConnect;

/// Settings that the role must not change. A comparison needs no more than the isolation of one statement, and a stricter one fails
/// reads. A plan made while the table was empty would read all rows for each key, until the next `ANALYZE`.
const SESSION: &str = "-c default_transaction_isolation=read\\ committed -c enable_seqscan=off";

/// Connects to the first of several hosts that is suitable, beginning with the last one that was.
pub(crate) struct Connector {
    pub(crate) hosts: Vec<Config>,
    pub(crate) last: AtomicUsize,
    /// How long one address of a host may take.
    pub(crate) patience: Duration,
    /// The password, read for each connection.
    pub(crate) password: Option<PathBuf>,
    /// Whether a proxy such as `PgBouncer` refused the settings of sessions.
    pub(crate) is_plain: AtomicBool,
    pub(crate) tls: Tls,
}

/// A connection, and the task that reads from it. Dropping the task closes the connection.
pub(crate) type Connected = (Client, JoinSet<()>);

#[cfg_attr(
    not(feature = "tls"),
    expect(clippy::clone_on_copy, reason = "`NoTls` is copied")
)]
impl Connector {
    /// Connects. The server ends requests that take longer than `limit`, for a client that cannot cancel them.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<Connected, Failed> {
        let first = self.last.load(Ordering::Relaxed);
        let mut failed = Failed::Silent("the server did not accept a connection in time");
        for place in (first..first + self.hosts.len()).map(|place| place % self.hosts.len()) {
            for address in self.addresses(&self.hosts[place]).await {
                match timeout(self.patience, self.connect_to(address, limit)).await {
                    Ok(Ok(connected)) => {
                        self.last.store(place, Ordering::Relaxed);
                        return Ok(connected);
                    }
                    Ok(Err(error)) => failed = Failed::Postgres(error),
                    Err(_) => {}
                }
            }
        }
        Err(failed)
    }

    pub(crate) async fn cancel(&self, token: &CancelToken) -> Result<(), Error> {
        token.cancel_query(self.tls.clone()).await
    }

    /// Returns the configurations of a host's addresses, so that none takes the time of the others.
    async fn addresses(&self, host: &Config) -> Vec<Config> {
        let at = |address: IpAddr| host.clone().hostaddr(address).clone();
        let port = host.get_ports().first().copied().unwrap_or(5432);
        if let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs())
            && let Ok(Ok(found)) = timeout(self.patience, lookup_host((&**name, port))).await
        {
            return found.map(|address| at(address.ip())).collect();
        }
        // Connecting fails for the same reason.
        vec![host.clone()]
    }

    async fn connect_to(&self, mut config: Config, limit: Duration) -> Result<Connected, Error> {
        if let Some(password) = self.read_password().await {
            config.password(password.trim_end_matches(['\r', '\n']));
        }
        if !self.is_plain.load(Ordering::Relaxed) {
            let own = config.get_options().unwrap_or_default();
            let millis = limit.as_millis();
            let options = format!(
                "{own} -c statement_timeout={millis} -c lock_timeout={millis} -c idle_in_transaction_session_timeout={millis} {SESSION}"
            );
            let mut limited = config.clone();
            limited.options(options.trim_start());
            match self.start(&limited).await {
                Err(error) if is_refused_option(&error) => {
                    self.is_plain.store(true, Ordering::Relaxed);
                }
                connected => return connected,
            }
        }
        self.start(&config).await
    }

    /// Reads the password from its file, which may be on a slow disk. `None` if it cannot be read.
    async fn read_password(&self) -> Option<String> {
        let file = self.password.clone()?;
        let read = spawn_blocking(move || fs::read_to_string(file));
        read.await.ok()?.ok()
    }

    async fn start(&self, config: &Config) -> Result<Connected, Error> {
        let (client, connection) = config.connect(self.tls.clone()).await?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!("a connection to Postgres was lost: {}", cause(&error));
            }
        });
        Ok((client, task))
    }
}
