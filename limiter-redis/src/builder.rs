//! Configuration.

use std::time::Duration;

use limiter_core::Error;
use redis::aio::ConnectionLike;

use crate::RedisStore;
use crate::attempt::RetryPolicy;
use crate::connection::{Connection, Timeouts};
use crate::key::KeySpace;

/// The default key prefix.
pub const DEFAULT_PREFIX: &str = "limiter";

/// Configures a [`RedisStore`].
///
/// The default timeouts are what a request of a web service can afford to lose while Redis is away: two attempts of 250 ms
/// each. A healthy server answers within a few milliseconds.
#[derive(Clone, Debug)]
pub struct RedisStoreBuilder {
    prefix: String,
    connect_timeout: Duration,
    response_timeout: Duration,
    retries: u32,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            connect_timeout: Duration::from_millis(500),
            response_timeout: Duration::from_millis(250),
            retries: 1,
        }
    }
}

impl RedisStoreBuilder {
    /// Sets what the Redis keys of this store start with: 1 to 64 letters, digits, `-`, `_`, `.`, `:` or `/`. Default:
    /// `limiter`.
    ///
    /// Stores with different prefixes share nothing. Limiters on one store are kept apart by their names, so most programs
    /// need no prefix of their own.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long connecting may take, at first and after a connection was lost. Default: 500 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long each attempt of an operation may take, including the wait for a lost connection. Default: 250 ms.
    ///
    /// No operation takes longer than `(retries + 1) * (response_timeout + 20 ms)`.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets how often an operation is repeated if its answer is late or lost, or if the server cannot execute it at the
    /// moment. Default: 1. An operation counts once, however often it is repeated.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy { response_timeout: self.response_timeout, retries: self.retries }
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts { connect: self.connect_timeout, response: self.response_timeout }
    }

    /// Returns a store over a connection of the caller's.
    ///
    /// The store times the attempts. A connection that repeats commands itself after a lost answer may count an operation
    /// twice. A `ClusterConnection` with retries does that: build it with `retries(0)` and wrap it in a [`Connection`], which
    /// follows redirections.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the prefix is malformed.
    pub fn with_connection<C>(self, connection: C) -> Result<RedisStore<C>, Error>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Ok(RedisStore::new(connection, KeySpace::new(&self.prefix)?, self.retry_policy()))
    }

    /// Connects to a URL. A lost connection is made anew when it is needed.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | one server |
    /// | `rediss://…` | the same over TLS (feature `redis-tls` of the crate `limiter`) |
    /// | `redis+unix:///path[?db=database][&user=…][&pass=…]` | one server by its socket |
    /// | `redis+cluster://[[user]:password@]host[:port][,host[:port]…]` | a cluster by one or more of its nodes (feature `redis-cluster`) |
    /// | `rediss+cluster://…` | the same over TLS; the certificates must be for the hosts that the cluster announces |
    ///
    /// # Errors
    /// - [`Configuration`](limiter_core::ErrorKind::Configuration) if the URL or the prefix is malformed, if the URL needs a
    ///   feature that is not enabled, or if the server refuses the credentials.
    /// - [`Unavailable`](limiter_core::ErrorKind::Unavailable) or [`Timeout`](limiter_core::ErrorKind::Timeout) if the server
    ///   cannot be reached.
    pub async fn connect(self, url: &str) -> Result<RedisStore, Error> {
        let keys = KeySpace::new(&self.prefix)?;
        let connection = Connection::open(url, self.timeouts()).await?;
        Ok(RedisStore::new(connection, keys, self.retry_policy()))
    }

    /// Returns a store that connects to a URL when the first operation needs it, so that a service can start while Redis is
    /// away. Call this within a tokio runtime. Otherwise as [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) as [`connect`](Self::connect), or without a runtime.
    pub fn connect_lazily(self, url: &str) -> Result<RedisStore, Error> {
        let keys = KeySpace::new(&self.prefix)?;
        let connection = Connection::open_lazily(url, self.timeouts())?;
        Ok(RedisStore::new(connection, keys, self.retry_policy()))
    }
}
