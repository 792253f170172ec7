//! The connections that the store makes itself.

use std::time::Duration;

use limiter_core::{Error, ErrorKind};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, Value};

use crate::failure::Failure;

/// A connection to one Redis, or with the feature `cluster` to a Redis Cluster; cheap to clone, shared by all clones.
///
/// It makes itself anew when it was lost, and never repeats a command that may have been executed.
#[derive(Clone)]
pub struct Connection(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Single(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(crate::cluster::Cluster),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match &self.0 {
            Kind::Single(_) => "Single",
            #[cfg(feature = "cluster")]
            Kind::Cluster(_) => "Cluster",
        };
        f.debug_tuple("Connection").field(&name).finish()
    }
}

impl From<ConnectionManager> for Connection {
    fn from(manager: ConnectionManager) -> Self {
        Self(Kind::Single(manager))
    }
}

/// The connection should be built with `retries(0)`: redirections are followed here, and a repetition that does not
/// know that it is one counts twice.
#[cfg(feature = "cluster")]
impl From<redis::cluster_async::ClusterConnection> for Connection {
    fn from(connection: redis::cluster_async::ClusterConnection) -> Self {
        Self(Kind::Cluster(crate::cluster::Cluster::Given(connection)))
    }
}

/// The time-outs of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

pub(crate) fn configuration(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, text)
}

impl Connection {
    /// Connects to a URL.
    pub(crate) async fn open(url: &str, times: Times) -> Result<Self, Error> {
        prepare(url)?;
        let result = match cluster_nodes(url) {
            None => single(url, times)?.connect().await,
            #[cfg(feature = "cluster")]
            Some(nodes) => crate::cluster::connect(nodes, times).await,
            #[cfg(not(feature = "cluster"))]
            Some(_) => return Err(configuration("a cluster URL needs the feature \"cluster\" of limiter-redis")),
        };
        result.map_err(|error| Failure::Redis(error).into_connect_error(url))
    }

    /// A connection to a URL that is made when it is first needed.
    pub(crate) fn open_lazily(url: &str, times: Times) -> Result<Self, Error> {
        prepare(url)?;
        let result = match cluster_nodes(url) {
            None => single(url, times)?.connect_lazily(),
            #[cfg(feature = "cluster")]
            Some(nodes) => crate::cluster::connect_lazily(nodes, times),
            #[cfg(not(feature = "cluster"))]
            Some(_) => return Err(configuration("a cluster URL needs the feature \"cluster\" of limiter-redis")),
        };
        result.map_err(|error| Failure::Redis(error).into_connect_error(url))
    }
}

/// What a connection to this URL needs of its surroundings.
fn prepare(url: &str) -> Result<(), Error> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(configuration("a connection to Redis needs a tokio runtime to run in"));
    }
    if url.starts_with("rediss") {
        #[cfg(not(feature = "tls"))]
        return Err(configuration("a rediss URL needs the feature \"tls\" of limiter-redis"));
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails only if another thread has just installed one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
    }
    Ok(())
}

/// The URLs of the nodes of `redis+cluster://user:password@host:port,host:port`.
fn cluster_nodes(url: &str) -> Option<Vec<String>> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.strip_suffix("+cluster")?;
    let (credentials, hosts) = rest.rsplit_once('@').map_or(("", rest), |(user, hosts)| (user, hosts));
    let at = if credentials.is_empty() { "" } else { "@" };
    Some(hosts.trim_end_matches('/').split(',').map(|host| format!("{scheme}://{credentials}{at}{host}")).collect())
}

pub(crate) fn tcp_settings(times: Times) -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    // Without it a connection whose other end is gone without a word is given up only after many minutes.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout((times.connect + times.response).max(Duration::from_secs(1)));
    #[cfg(not(target_os = "linux"))]
    let _ = times;
    settings
}

/// A refused connection fails the operation at once; the next operation tries again.
pub(crate) fn manager_config(times: Times) -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(times.connect))
        .set_response_timeout(None)
}

struct Single {
    client: redis::Client,
    config: ConnectionManagerConfig,
}

fn single(url: &str, times: Times) -> Result<Single, Error> {
    let open = || {
        let info = url.into_connection_info()?;
        redis::Client::open(info.set_tcp_settings(tcp_settings(times)))
    };
    let client = open().map_err(|error| {
        configuration(format!(
            "{}: expected redis://, rediss://, redis+unix://, redis+cluster:// or rediss+cluster:// with a host and port or a path: {error}",
            shown_url(url)
        ))
    })?;
    let config = manager_config(times);
    Ok(Single { client, config })
}

impl Single {
    async fn connect(self) -> Result<Connection, RedisError> {
        ConnectionManager::new_with_config(self.client, self.config).await.map(Connection::from)
    }

    fn connect_lazily(self) -> Result<Connection, RedisError> {
        ConnectionManager::new_lazy_with_config(self.client, self.config).map(Connection::from)
    }
}

/// A URL without its credentials.
pub(crate) fn shown_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    let rest = rest.split('?').next().unwrap_or_default();
    format!("Redis URL \"{}://{}\"", scheme.escape_debug(), rest.escape_debug())
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match &mut self.0 {
            Kind::Single(manager) => manager.req_packed_command(cmd),
            #[cfg(feature = "cluster")]
            Kind::Cluster(cluster) => Box::pin(cluster.send(cmd)),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &mut self.0 {
            Kind::Single(manager) => manager.req_packed_commands(pipeline, offset, count),
            #[cfg(feature = "cluster")]
            Kind::Cluster(cluster) => Box::pin(cluster.send_all(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match &self.0 {
            Kind::Single(manager) => manager.get_db(),
            #[cfg(feature = "cluster")]
            Kind::Cluster(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_urls_name_their_nodes() {
        assert_eq!(cluster_nodes("redis://a:1"), None);
        assert_eq!(cluster_nodes("redis+cluster://a:1").unwrap(), ["redis://a:1"]);
        assert_eq!(cluster_nodes("rediss+cluster://u:p@a:1,b:2/").unwrap(), ["rediss://u:p@a:1", "rediss://u:p@b:2"]);
    }

    #[test]
    fn shown_urls_hide_credentials() {
        assert_eq!(shown_url("redis://u:secret@h:1/0"), "Redis URL \"redis://h:1/0\"");
        assert_eq!(shown_url("redis+unix:///p?user=u&pass=secret"), "Redis URL \"redis+unix:///p\"");
    }

    #[tokio::test]
    async fn malformed_urls_are_refused() {
        let times = Times { connect: Duration::from_secs(1), response: Duration::from_secs(1) };
        for url in ["", "redis", "http://h", "redis://", "redis://u:secret@h:port", "redis+cluster://", "redis://h/x"] {
            let error = Connection::open(url, times).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn without_a_runtime_there_is_an_error_and_no_panic() {
        let times = Times { connect: Duration::from_secs(1), response: Duration::from_secs(1) };
        let error = Connection::open_lazily("redis://127.0.0.1:1", times).unwrap_err();
        assert!(error.to_string().contains("needs a tokio runtime"), "{error}");
    }
}
