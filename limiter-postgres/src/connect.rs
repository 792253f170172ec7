//! How connections are made.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use crate::failure::{Failed, cause};
use crate::stream::{Stream, UntilClosed, reach};

#[cfg(not(feature = "tls"))]
pub(crate) type Tls = tokio_postgres::NoTls;
#[cfg(feature = "tls")]
pub(crate) type Tls = tokio_postgres_rustls::MakeRustlsConnect;

type TlsConnect = <Tls as MakeTlsConnect<Stream>>::TlsConnect;

/// Settings that the role must not change. A comparison needs no more than the isolation of one statement, and a stricter one fails
/// reads. A plan made while the table was empty would read all rows for each key, until the next `ANALYZE`.
const SESSION: &str = "-c default_transaction_isolation=read\\ committed -c enable_seqscan=off";
/// How long a server may take to close a connection.
const CLOSING: Duration = Duration::from_secs(1);

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

/// A connection.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// Reads from the connection. Dropping it closes the connection.
    task: JoinSet<()>,
    /// The host and its address.
    config: Config,
}

impl Session {
    /// Closes the connection, and waits until the server has done so.
    pub(crate) async fn close(self) {
        let Self {
            client, mut task, ..
        } = self;
        drop(client);
        let _ = timeout(CLOSING, task.join_next()).await;
    }

    /// Returns an error unless the server accepts the transactions that `target_session_attrs` asks for.
    async fn check(&self) -> Result<(), Failed> {
        let wanted = match self.config.get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => "off",
            TargetSessionAttrs::ReadOnly => "on",
            _ => return Ok(()),
        };
        let shown = self.client.simple_query("SHOW transaction_read_only");
        let is_wanted = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some(wanted),
            _ => false,
        };
        match shown.await?.iter().any(is_wanted) {
            true => Ok(()),
            false => Err(Failed::Refused(
                "the server is not what target_session_attrs asks for: read-only, or not"
                    .to_owned(),
            )),
        }
    }
}

impl Connector {
    /// Connects. The server ends requests that take longer than `limit`, for a client that cannot cancel them.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<Session, Failed> {
        let first = self.last.load(Ordering::Relaxed);
        let mut failed = Failed::Silent("the server did not accept a connection in time");
        for place in (first..first + self.hosts.len()).map(|place| place % self.hosts.len()) {
            for address in self.addresses(&self.hosts[place]).await {
                let until = Instant::now() + self.patience;
                let session = match timeout_at(until, self.connect_to(address, limit)).await {
                    Ok(Ok(session)) => session,
                    Ok(Err(error)) => {
                        failed = error;
                        continue;
                    }
                    Err(_) => continue,
                };
                match timeout_at(until, session.check()).await {
                    Ok(Ok(())) => {
                        self.last.store(place, Ordering::Relaxed);
                        return Ok(session);
                    }
                    Ok(Err(error)) => failed = error,
                    Err(_) => {}
                }
                session.close().await;
            }
        }
        Err(failed)
    }

    /// Cancels the request of a connection. Returns once the server has done so, or has found none. An error means that the server
    /// cannot be reached.
    pub(crate) fn cancel(
        self: Arc<Self>,
        session: &Session,
    ) -> impl Future<Output = Result<(), Failed>> + Send + use<> {
        let (token, config) = (session.client.cancel_token(), session.config.clone());
        async move {
            let stream = reach(&config).await?;
            Ok(token.cancel_query_raw(stream, self.tls(&config)?).await?)
        }
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

    async fn connect_to(&self, mut config: Config, limit: Duration) -> Result<Session, Failed> {
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
            match self.start(limited).await {
                Err(failed) if failed.is_refused_option() => {
                    self.is_plain.store(true, Ordering::Relaxed);
                }
                started => return started,
            }
        }
        self.start(config).await
    }

    /// Reads the password from its file, which may be on a slow disk. `None` if it cannot be read.
    async fn read_password(&self) -> Option<String> {
        let file = self.password.clone()?;
        let read = spawn_blocking(move || fs::read_to_string(file));
        read.await.ok()?.ok()
    }

    /// Returns what makes a stream secure, or would if it were to be.
    fn tls(&self, config: &Config) -> Result<UntilClosed<TlsConnect>, Failed> {
        let name = match config.get_hosts().first() {
            Some(Host::Tcp(name)) => name,
            _ => "",
        };
        // Without TLS it is `Copy`, which a method's call would be warned of.
        let mut tls = Clone::clone(&self.tls);
        let tls = MakeTlsConnect::<Stream>::make_tls_connect(&mut tls, name);
        let tls = tls.map_err(|error| Failed::Refused(error.to_string()));
        tls.map(UntilClosed)
    }

    async fn start(&self, config: Config) -> Result<Session, Failed> {
        let stream = reach(&config).await?;
        let tls = self.tls(&config)?;
        let (client, connection) = config.connect_raw(stream, tls).await?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!("a connection to Postgres was lost: {}", cause(&error));
            }
        });
        Ok(Session {
            client,
            task,
            config,
        })
    }
}
