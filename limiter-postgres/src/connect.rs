//! How the pool of a URL connects.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::Connect;
use limiter_core::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};

use crate::failure::{cause, is_refused_option};

/// What connects with or without TLS.
pub(crate) trait Tls:
    MakeTlsConnect<Socket, Stream: Send, TlsConnect: Send + Sync + TlsConnect<Socket, Future: Send>>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Tls for T where
    T: MakeTlsConnect<
            Socket,
            Stream: Send,
            TlsConnect: Send + Sync + TlsConnect<Socket, Future: Send>,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Connects to the first of several hosts that is suitable, beginning with the last one that was.
pub(crate) struct Connector<T> {
    pub(crate) hosts: Vec<Config>,
    pub(crate) last: AtomicUsize,
    /// How long one host may take.
    pub(crate) patience: Duration,
    /// The password, read for each connection.
    pub(crate) password: Option<PathBuf>,
    /// The timeout that the server gets, in milliseconds.
    pub(crate) server_timeout: Arc<AtomicU64>,
    /// Whether a `PgBouncer` refused it.
    pub(crate) is_plain: AtomicBool,
    pub(crate) tls: T,
}

type Connected = Result<(Client, JoinHandle<()>), Error>;

impl<T: Tls> Connector<T> {
    async fn connect_to(&self, host: &Config) -> Connected {
        let mut config = host.clone();
        let password = self.password.as_ref().map(fs::read_to_string);
        if let Some(Ok(password)) = password {
            config.password(password.trim_end());
        }
        if !self.is_plain.load(Ordering::Relaxed) {
            let connected = self.start(self.limited(&config)).await;
            match connected {
                Err(error) if is_refused_option(&error) => {
                    self.is_plain.store(true, Ordering::Relaxed);
                }
                connected => return connected,
            }
        }
        self.start(config).await
    }

    /// Adds the timeouts of the server, for a client that cannot cancel.
    fn limited(&self, config: &Config) -> Config {
        let mut options = config.get_options().unwrap_or_default().to_owned();
        let millis = self.server_timeout.load(Ordering::Relaxed);
        for name in ["statement", "lock", "idle_in_transaction_session"] {
            options += &format!(" -c {name}_timeout={millis}");
        }
        let mut config = config.clone();
        config.options(options.trim_start());
        config
    }

    async fn start(&self, config: Config) -> Connected {
        let (client, connection) = config.connect(self.tls.clone()).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!("a connection to Postgres was lost: {}", cause(&error));
            }
        });
        Ok((client, task))
    }
}

impl<T: Tls> Connect for Connector<T> {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Connected> {
        Box::pin(async move {
            let count = self.hosts.len();
            let first = self.last.load(Ordering::Relaxed);
            for place in (first..first + count - 1).map(|place| place % count) {
                let connecting = self.connect_to(&self.hosts[place]);
                if let Ok(Ok(connected)) = timeout(self.patience, connecting).await {
                    self.last.store(place, Ordering::Relaxed);
                    return Ok(connected);
                }
            }
            // The pool ends this one.
            let place = (first + count - 1) % count;
            let connected = self.connect_to(&self.hosts[place]).await?;
            self.last.store(place, Ordering::Relaxed);
            Ok(connected)
        })
    }
}
