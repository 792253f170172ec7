//! A store's connection to a server, a Cluster or a Sentinel.

use std::sync::Arc;

use limiter_core::{Error, ErrorKind};
use redis::aio::ConnectionLike;
use redis::{Client, Cmd, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};

#[cfg(feature = "cluster")]
use crate::cluster::NodePool;
use crate::eviction::Eviction;
use crate::failure::Failure;
use crate::reconnecting::Reconnecting;
#[cfg(feature = "sentinel")]
use crate::sentinel::master_of;
use crate::settings::{Address, Certificates, Runtime, Timeouts, connection_info};
use crate::url;

/// A connection to one Redis server or, with the features `cluster` and `sentinel`, to a Redis Cluster or the master of
/// sentinels.
///
/// A clone is cheap and shares the connection. A lost connection is opened again, and a command that the server may have
/// executed is never repeated.
#[derive(Clone)]
pub struct Connection(Kind);

#[derive(Clone)]
enum Kind {
    Single(Reconnecting),
    Custom(Arc<SendCommand>),
    #[cfg(feature = "cluster")]
    Cluster(NodePool),
}

/// Sends a command over a connection of the user's own type.
type SendCommand = dyn for<'a> Fn(&'a Cmd) -> RedisFuture<'a, Value> + Send + Sync;

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Takes over a connection to one server, such as a [`MultiplexedConnection`](redis::aio::MultiplexedConnection).
    ///
    /// A connection that repeats commands itself after a lost reply may count an operation twice.
    ///
    /// # Examples
    /// Confirms a write once a replica has it. Nothing else passes this connection meanwhile.
    /// ```
    /// use redis::aio::{ConnectionLike, MultiplexedConnection};
    /// use redis::{Cmd, Pipeline, RedisFuture, Value};
    ///
    /// #[derive(Clone)]
    /// struct Waiting(MultiplexedConnection);
    ///
    /// impl ConnectionLike for Waiting {
    ///     fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
    ///         Box::pin(async move {
    ///             let mut pipeline = Pipeline::with_capacity(2);
    ///             pipeline.add_command(cmd.clone()).cmd("WAIT").arg(1).arg(1000);
    ///             let mut replies = self.0.req_packed_commands(&pipeline, 0, 2).await?;
    ///             match (replies.pop(), replies.pop()) {
    ///                 (Some(Value::Int(1..)), Some(reply)) => Ok(reply),
    ///                 // The store repeats the operation with the same id, or returns the error.
    ///                 _ => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    ///             }
    ///         })
    ///     }
    ///
    ///     fn req_packed_commands<'a>(&'a mut self, all: &'a Pipeline, from: usize, count: usize) -> RedisFuture<'a, Vec<Value>> {
    ///         self.0.req_packed_commands(all, from, count)
    ///     }
    ///
    ///     fn get_db(&self) -> i64 {
    ///         self.0.get_db()
    ///     }
    /// }
    /// ```
    pub fn new<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self(Kind::Custom(Arc::new(move |cmd| {
            let mut connection = connection.clone();
            Box::pin(async move { connection.req_packed_command(cmd).await })
        })))
    }

    /// Connects to a URL.
    pub(crate) async fn open(
        url: &str,
        timeouts: Timeouts,
        certificates: &Certificates,
    ) -> Result<Self, Error> {
        let connection = Self::open_lazy(url, timeouts, certificates)?;
        let opened = match &connection.0 {
            Kind::Single(server) => server.connect().await,
            Kind::Custom(_) => Ok(()),
            #[cfg(feature = "cluster")]
            Kind::Cluster(pool) => pool.refresh_now().await,
        };
        opened.map_err(|error| Failure::Redis(error).into_connect_error(url))?;
        Ok(connection)
    }

    /// Returns a connection to a URL that is opened when it is first needed. Checks its requirements, and provides the missing
    /// ones.
    pub(crate) fn open_lazy(
        url: &str,
        timeouts: Timeouts,
        certificates: &Certificates,
    ) -> Result<Self, Error> {
        url::check(url)?;
        let runtime = Runtime::current().ok_or_else(|| {
            let text = "a connection to Redis needs a tokio runtime";
            Error::new(ErrorKind::Configuration, text)
        })?;
        #[cfg(feature = "tls")]
        if url.starts_with("rediss") && rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails only if another thread has just installed one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let info = |url: &str| connection_info(url, timeouts, certificates);
        let kind = move || match url {
            #[cfg(feature = "sentinel")]
            _ if let Some(url) = url::sentinel(url) => {
                if url.name.is_empty() {
                    return Err((
                        redis::ErrorKind::InvalidClientConfig,
                        "the name of the master is missing",
                    )
                        .into());
                }
                let sentinels = url
                    .sentinels
                    .iter()
                    .map(|url| info(url))
                    .collect::<RedisResult<_>>()?;
                let server = info(&url.server)?;
                master_of(sentinels, url.login, url.name, &server, timeouts, runtime)
                    .map(Kind::Single)
            }
            #[cfg(feature = "cluster")]
            _ if let Some(nodes) = url::cluster_nodes(url) => {
                let seeds = nodes
                    .iter()
                    .map(|url| info(url))
                    .collect::<RedisResult<Vec<_>>>()?;
                NodePool::new(&seeds, timeouts, runtime).map(Kind::Cluster)
            }
            _ => {
                let client = Client::open(info(url)?)?;
                let eviction = Eviction::of(client.get_connection_info().addr().to_string());
                let server = Reconnecting::lazy(client, Some(eviction), timeouts, runtime);
                Ok(Kind::Single(server))
            }
        };
        kind()
            .map(Self)
            .map_err(|error: RedisError| url::malformed(url, &error))
    }

    /// Sends a command. In a Cluster, it goes to the node that serves its slot.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match &self.0 {
            Kind::Single(server) => server.send(cmd).await.map_err(of_one_server),
            Kind::Custom(send) => send(cmd).await?.extract_error(),
            #[cfg(feature = "cluster")]
            Kind::Cluster(pool) => pool.send(cmd).await,
        }
    }

    /// Returns the name of the Cluster node that serves a key, if it is known, and the slot: one script can use several keys of
    /// one slot. All keys of one server have slot 0.
    pub(crate) fn place_of(&self, key: &[u8]) -> (Option<Arc<str>>, Option<u64>) {
        match &self.0 {
            #[cfg(feature = "cluster")]
            Kind::Cluster(pool) => pool.place_of(key),
            _ => {
                let _ = key;
                (None, Some(0))
            }
        }
    }

    /// Returns the servers whose `maxmemory-policy` is known to delete logs, with the policy.
    pub(crate) fn evicting(&self) -> Vec<(String, Arc<str>)> {
        match &self.0 {
            Kind::Single(server) => server.evicting().into_iter().collect(),
            Kind::Custom(_) => Vec::new(),
            #[cfg(feature = "cluster")]
            Kind::Cluster(pool) => pool.evicting(),
        }
    }

    /// Asks a Cluster for the addresses of its masters. One server is a node without an address.
    pub(crate) async fn nodes(&self) -> RedisResult<Vec<Option<Address>>> {
        match &self.0 {
            #[cfg(feature = "cluster")]
            Kind::Cluster(pool) => Ok(pool.masters().await?.into_iter().map(Some).collect()),
            _ => Ok(vec![None]),
        }
    }

    /// Returns a connection to one of the [nodes](Self::nodes).
    pub(crate) fn node(&self, address: Option<&Address>) -> RedisResult<Self> {
        match (&self.0, address) {
            #[cfg(feature = "cluster")]
            (Kind::Cluster(pool), Some(address)) => {
                Ok(Self(Kind::Single(pool.at(address)?.connection)))
            }
            _ => Ok(self.clone()),
        }
    }
}

/// Explains a redirection, which nobody follows: a repetition gets it again.
fn of_one_server(error: RedisError) -> RedisError {
    let text =
        "the server is a node of a Redis Cluster, so the URL must begin with redis+cluster://";
    match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => {
            (redis::ErrorKind::InvalidClientConfig, text).into()
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn malformed_urls_are_refused() {
        for url in [
            "",
            "redis",
            "localhost:6379",
            "u:secret@h",
            "http://h",
            "redis://",
            "redis://u:secret@h:port",
            "redis+cluster://",
            "redis://h/x",
            "redis+sentinel://u:secret@h",
            "redis+sentinel://u:secret@h/m/x",
            "redis+sentinel:///m",
        ] {
            let error = lazy(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}: {error}");
            assert!(error.to_string().contains("expected redis://, "), "{error}");
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn without_a_runtime_there_is_an_error_and_no_panic() {
        let error = lazy("redis://127.0.0.1:1").unwrap_err();
        assert!(error.to_string().contains("needs a tokio runtime"));
    }

    fn lazy(url: &str) -> Result<Connection, Error> {
        let timeouts = Timeouts {
            connect: Duration::from_secs(1),
            response: Duration::from_secs(1),
        };
        Connection::open_lazy(url, timeouts, &Certificates::default())
    }
}
