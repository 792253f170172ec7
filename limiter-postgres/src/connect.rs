//! How connections are made.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
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
    /// How long one host may take.
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
            let connecting = self.connect_to(&self.hosts[place], limit);
            match timeout(self.patience, connecting).await {
                Ok(Ok(connected)) => {
                    self.last.store(place, Ordering::Relaxed);
                    return Ok(connected);
                }
                Ok(Err(error)) => failed = Failed::Postgres(error),
                Err(_) => {}
            }
        }
        Err(failed)
    }

    pub(crate) async fn cancel(&self, token: &CancelToken) -> Result<(), Error> {
        token.cancel_query(self.tls.clone()).await
    }

    async fn connect_to(&self, host: &Config, limit: Duration) -> Result<Connected, Error> {
        let mut config = host.clone();
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
