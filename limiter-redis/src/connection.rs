//! The connections that the store opens itself.

use limiter_core::{Error, ErrorKind};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, Value};

#[cfg(feature = "cluster")]
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::settings::Timeouts;
use crate::url;

/// A connection to one Redis server or, with the feature `cluster`, to a Redis Cluster.
///
/// A clone is cheap and shares the connection. A lost connection is opened again, and a command that the server may have
/// executed is never repeated.
#[derive(Clone)]
pub struct Connection(pub(crate) Topology);

#[derive(Clone)]
pub(crate) enum Topology {
    Single(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(Cluster),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match &self.0 {
            Topology::Single(_) => "Single",
            #[cfg(feature = "cluster")]
            Topology::Cluster(_) => "Cluster",
        };
        f.debug_tuple("Connection").field(&name).finish()
    }
}

/// Takes over a connection to one server. Its configuration stays as it is; without retries, no command counts twice.
impl From<ConnectionManager> for Connection {
    fn from(manager: ConnectionManager) -> Self {
        Self(Topology::Single(manager))
    }
}

/// Takes over a connection to a Cluster. Build it with `retries(0)`: [`Connection`] follows redirections itself, and a command
/// that the client library repeats after a lost reply may count twice.
#[cfg(feature = "cluster")]
#[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
impl From<redis::cluster_async::ClusterConnection> for Connection {
    fn from(connection: redis::cluster_async::ClusterConnection) -> Self {
        Self(Topology::Cluster(Cluster::UserConnection(connection)))
    }
}

impl Connection {
    /// Connects to a URL.
    pub(crate) async fn open(url: &str, timeouts: Timeouts) -> Result<Self, Error> {
        prepare(url)?;
        let result = match url::cluster_nodes(url) {
            #[cfg(feature = "cluster")]
            Some(nodes) => Cluster::connect(nodes, timeouts).await.map(|cluster| Self(Topology::Cluster(cluster))),
            _ => single(url, timeouts)?.connect().await,
        };
        result.map_err(|error| Failure::Redis(error).into_connect_error(url))
    }

    /// Returns a connection to a URL that is opened when it is first needed.
    pub(crate) fn open_lazily(url: &str, timeouts: Timeouts) -> Result<Self, Error> {
        prepare(url)?;
        let result = match url::cluster_nodes(url) {
            #[cfg(feature = "cluster")]
            Some(nodes) => Cluster::connect_lazily(nodes, timeouts).map(|cluster| Self(Topology::Cluster(cluster))),
            _ => single(url, timeouts)?.connect_lazily(),
        };
        result.map_err(|error| Failure::Redis(error).into_connect_error(url))
    }
}

/// Checks what a connection to this URL needs, and provides what is missing.
fn prepare(url: &str) -> Result<(), Error> {
    url::check(url)?;
    if tokio::runtime::Handle::try_current().is_err() {
        let text = "a connection to Redis needs a tokio runtime to run in";
        return Err(Error::new(ErrorKind::Configuration, text));
    }
    #[cfg(feature = "tls")]
    if url.starts_with("rediss") && rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread has just installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Ok(())
}

struct Single {
    client: redis::Client,
    config: ConnectionManagerConfig,
}

fn single(url: &str, timeouts: Timeouts) -> Result<Single, Error> {
    let open = || {
        let info = url.into_connection_info()?;
        redis::Client::open(info.set_tcp_settings(timeouts.tcp_settings()))
    };
    let client = open().map_err(|error| url::malformed(url, &error))?;
    Ok(Single { client, config: timeouts.manager_config() })
}

impl Single {
    async fn connect(self) -> Result<Connection, RedisError> {
        ConnectionManager::new_with_config(self.client, self.config).await.map(Connection::from)
    }

    fn connect_lazily(self) -> Result<Connection, RedisError> {
        ConnectionManager::new_lazy_with_config(self.client, self.config).map(Connection::from)
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match &mut self.0 {
            Topology::Single(manager) => manager.req_packed_command(cmd),
            #[cfg(feature = "cluster")]
            Topology::Cluster(cluster) => Box::pin(cluster.send(cmd)),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &mut self.0 {
            Topology::Single(manager) => manager.req_packed_commands(pipeline, offset, count),
            #[cfg(feature = "cluster")]
            Topology::Cluster(cluster) => Box::pin(cluster.send_all(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match &self.0 {
            Topology::Single(manager) => manager.get_db(),
            #[cfg(feature = "cluster")]
            Topology::Cluster(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn timeouts() -> Timeouts {
        Timeouts { connect: Duration::from_secs(1), response: Duration::from_secs(1) }
    }

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
        ] {
            for error in [
                Connection::open(url, timeouts()).await.unwrap_err(),
                Connection::open_lazily(url, timeouts()).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Configuration, "{url}: {error}");
                assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
            }
        }
    }

    #[test]
    fn without_a_runtime_there_is_an_error_and_no_panic() {
        let error = Connection::open_lazily("redis://127.0.0.1:1", timeouts()).unwrap_err();
        assert!(error.to_string().contains("needs a tokio runtime"), "{error}");
    }
}
