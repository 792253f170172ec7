//! Configuring a store, and connecting it.

use std::time::Duration;

use limiter_core::Error;

use crate::attempt::{RetryBudget, RetryPolicy};
use crate::channel::Channel;
use crate::connection::Connection;
use crate::key::{HashTag, KeySpace};
use crate::settings::{Certificates, Timeouts};
use crate::store::RedisStore;

/// The default prefix of Redis keys.
pub const DEFAULT_PREFIX: &str = "limiter";
/// The upper bound of timeouts, so that no sum of durations overflows.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Configures a [`RedisStore`].
///
/// The default of two attempts of 250 ms bounds the time that a web request loses during an outage. A healthy server responds
/// within a few milliseconds.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use limiter_redis::RedisStore;
///
/// let builder = RedisStore::builder().prefix("shop").response_timeout(Duration::from_millis(100)).retries(2);
/// ```
#[derive(Clone, Debug)]
pub struct RedisStoreBuilder {
    prefix: String,
    timeouts: Timeouts,
    retries: u32,
    hash_tag: Option<HashTag>,
    certificates: Certificates,
    seed: Option<u64>,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            timeouts: Timeouts {
                connect: Duration::from_millis(500),
                response: Duration::from_millis(250),
            },
            retries: 1,
            hash_tag: None,
            certificates: Certificates::default(),
            seed: None,
        }
    }
}

impl RedisStoreBuilder {
    /// Sets the prefix of the store's Redis keys. Default: `limiter`.
    ///
    /// A prefix is 1 to 64 ASCII letters, digits, `-`, `_`, `.`, `:` or `/`; connecting returns an error for any other. Stores
    /// with different prefixes share no logs. Limiters have names, so most programs need no other prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the timeout for connecting, at first and after a connection was lost. Default: 500 ms, at most a day.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Sets the timeout for each attempt of an operation, including the wait for a lost connection. Default: 250 ms, at
    /// most a day.
    ///
    /// No operation takes longer than `(retries + 1) * (response_timeout + 20 ms)`.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.response = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Sets how often an operation is retried. Default: 1.
    ///
    /// The store retries if the reply is late or lost, or if the server cannot execute commands at the moment. A retried operation
    /// counts once. Ten replies allow one retry, and 100 are in reserve, so that retries do not keep a busy server from
    /// recovering. A reset is not retried after a lost reply.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the part of a key that is its hash tag, such as a tuple's tenant. Default: the name and the key, which spreads all
    /// logs over a Cluster.
    ///
    /// Keys with the same tag share a hash slot, so calls on their logs go together in one script. All logs with the same tag
    /// are on one node, so choose a part with many values. All stores with the same prefix need the same tags, or they do not
    /// share logs. A key of more than 256 bytes is stored as its digest, its tag is not.
    ///
    /// ```
    /// # use limiter_redis::RedisStore;
    /// // Of a key such as ("tenant 7", "search").
    /// let builder = RedisStore::builder().hash_tag(|key| key.split(|byte| *byte == b',').next().unwrap_or(key));
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn hash_tag(mut self, tag: fn(&[u8]) -> &[u8]) -> Self {
        self.hash_tag = Some(tag);
        self
    }

    /// Sets the certificates for TLS, in PEM: the authorities that must have signed the servers' certificates, and the client's own
    /// certificate chain and key. Default: the system's authorities, and no certificate of the client.
    ///
    /// They also apply to a Cluster's nodes, to sentinels and to their master. Connecting returns an error if the PEM is malformed, or
    /// if the URL is not one of `rediss`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn certificates(
        mut self,
        authorities: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let client = client.map(|(client_cert, client_key)| redis::ClientTlsConfig {
            client_cert,
            client_key,
        });
        self.certificates = Certificates(Some(redis::TlsCertificates {
            client_tls: client,
            root_cert: authorities,
        }));
        self
    }

    /// Sets the seed of the entries' ids, for tests that repeat. Default: the operating system's random numbers.
    #[doc(hidden)]
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    fn store(&self, connection: Connection, keys: KeySpace) -> RedisStore {
        let response_timeout = self.timeouts.response;
        let retries = self.retries;
        let retry_policy = RetryPolicy {
            response_timeout,
            retries,
            budget: RetryBudget::new(),
        };
        RedisStore::new(Channel::new(connection, retry_policy), keys, self.seed)
    }

    /// Returns a store over a connection that the caller opened: see [`Connection`].
    ///
    /// The store applies the response timeout and the retries; the connect timeout has no effect.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the prefix is malformed.
    pub fn with_connection(self, connection: Connection) -> Result<RedisStore, Error> {
        Ok(self.store(connection, KeySpace::new(&self.prefix, self.hash_tag)?))
    }

    /// Connects to a URL. The store reconnects when a lost connection is needed again.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | one server |
    /// | `rediss://…` | one server over TLS (feature `tls`) |
    /// | `redis+unix:///path[?db=database][&user=…][&pass=…]` | one server through its socket, on Unix |
    /// | `redis+cluster://[[user]:password@]host[:port][,host[:port]…]` | a Cluster, by one or more of its nodes (feature `cluster`) |
    /// | `redis+sentinel://[[user]:password@]host[:port][,host[:port]…]/name[/database]` | the master that sentinels call `name` (feature `sentinel`). Sentinels that require a login get the server's, or `?sentinel_user=…&sentinel_pass=…` |
    /// | `rediss+sentinel://…` | the sentinels and the master over TLS (both features) |
    /// | `rediss+cluster://…` | a Cluster over TLS (both features); its certificates must be for the hosts that it announces |
    ///
    /// Options after `?` other than these and `protocol` are an error.
    ///
    /// Percent-encode `/`, `?`, `#`, `%` and `@` in users and passwords. No error and no `Debug` output shows them.
    ///
    /// The crate `exact-limiter` calls the features `redis-tls`, `redis-cluster` and `redis-sentinel`.
    ///
    /// # Errors
    /// - [`Configuration`](limiter_core::ErrorKind::Configuration) if the URL or the prefix is malformed, if the URL needs a
    ///   feature that is not enabled, or if the server refuses the credentials.
    /// - [`Unavailable`](limiter_core::ErrorKind::Unavailable) or [`Timeout`](limiter_core::ErrorKind::Timeout) if the server
    ///   cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection and has no other effect.
    pub async fn connect(self, url: &str) -> Result<RedisStore, Error> {
        let keys = KeySpace::new(&self.prefix, self.hash_tag)?;
        let connection = Connection::open(url, self.timeouts, &self.certificates).await?;
        Ok(self.store(connection, keys))
    }

    /// Returns a store that connects to a URL with its first operation, so that a service can start while Redis is down.
    ///
    /// Call this within a tokio runtime. [`connect`](Self::connect) lists the URLs.
    ///
    /// # Errors
    /// [`Configuration`](limiter_core::ErrorKind::Configuration) if the URL or the prefix is malformed, if the URL needs a
    /// feature that is not enabled, or outside a tokio runtime.
    pub fn connect_lazy(self, url: &str) -> Result<RedisStore, Error> {
        let keys = KeySpace::new(&self.prefix, self.hash_tag)?;
        let connection = Connection::open_lazy(url, self.timeouts, &self.certificates)?;
        Ok(self.store(connection, keys))
    }
}

impl RedisStore {
    /// Connects to a URL with the default configuration. [`RedisStoreBuilder::connect`] lists the URLs.
    ///
    /// # Errors
    /// The errors of [`RedisStoreBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection and has no other effect.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Returns a builder with the default configuration.
    #[must_use]
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }
}
