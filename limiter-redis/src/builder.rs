//! Configuration.

use std::time::Duration;

use limiter_core::Error;
use redis::aio::ConnectionLike;

use crate::RedisStore;
use crate::attempt::Patience;
use crate::connection::{Connection, Times};
use crate::key::KeySpace;

/// The key prefix of a store that chose none.
pub const DEFAULT_PREFIX: &str = "limiter";

/// Configures a [`RedisStore`].
///
/// The time-outs default to what a request of a web service can afford to lose when Redis is away: at most two attempts
/// of 250 ms each. A healthy server answers within a few milliseconds.
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
    /// What the keys of this store start with, `limiter` unless said: 1 to 64 letters, digits, `-`, `_`, `.`, `:` or
    /// `/`. Stores of different prefixes share nothing.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long connecting may take, at first and whenever the connection has to be made anew; 500 ms unless said.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long each attempt of an operation may take, waiting for a lost connection included; 250 ms unless said.
    /// No operation takes longer than `(retries + 1) * (response_timeout + 20 ms)`.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How often an operation is repeated whose answer was late or lost, or that the server could not execute for the
    /// moment; 1 unless said. However often it is repeated, it counts once.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    fn patience(&self) -> Patience {
        Patience { response_timeout: self.response_timeout, retries: self.retries }
    }

    fn times(&self) -> Times {
        Times { connect: self.connect_timeout, response: self.response_timeout }
    }

    /// A store over a connection of the caller's own.
    ///
    /// Attempts are timed by the store. A connection that repeats commands by itself after it lost an answer, as a
    /// `ClusterConnection` built with retries does, may count an operation twice: build it with `retries(0)` and wrap
    /// it as a [`Connection`], which follows redirections.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the prefix is malformed.
    pub fn with_connection<C>(self, connection: C) -> Result<RedisStore<C>, Error>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Ok(RedisStore::new(connection, KeySpace::new(&self.prefix)?, self.patience()))
    }

    /// Connects to a URL:
    ///
    /// - `redis://[[user]:password@]host[:port][/database]`,
    /// - `rediss://…`, the same over TLS (feature `tls`),
    /// - `redis+unix:///path[?db=database][&user=…][&pass=…]`,
    /// - `redis+cluster://[[user]:password@]host[:port][,host[:port]…]` and `rediss+cluster://…`, a cluster by one or
    ///   more of its nodes (feature `cluster`). Over TLS the certificates must be for the hosts that the cluster announces.
    ///
    /// A lost connection is made anew when it is needed.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the URL or the prefix is malformed, needs a feature
    /// that is not compiled in, or the server refuses the credentials;
    /// [`Unavailable`](limiter_core::ErrorKind::Unavailable) or [`Timeout`](limiter_core::ErrorKind::Timeout) if the
    /// server cannot be reached.
    pub async fn connect(self, url: &str) -> Result<RedisStore, Error> {
        let keys = KeySpace::new(&self.prefix)?;
        let connection = Connection::open(url, self.times()).await?;
        Ok(RedisStore::new(connection, keys, self.patience()))
    }

    /// As [`connect`](Self::connect), but makes the connection when the first operation needs it, so that a service can
    /// start while Redis is away. It must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) as [`connect`](Self::connect), or without a runtime.
    pub fn connect_lazily(self, url: &str) -> Result<RedisStore, Error> {
        let keys = KeySpace::new(&self.prefix)?;
        let connection = Connection::open_lazily(url, self.times())?;
        Ok(RedisStore::new(connection, keys, self.patience()))
    }
}
