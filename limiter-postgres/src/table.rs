//! The table of logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use deadpool_postgres::Pool;
use limiter_core::store::LiveKey;
use limiter_core::{BoxFuture, Error, Timestamp};
use limiter_log::{Change, Loaded, LogStore, Table, async_trait, read_key};
use tokio_postgres::Socket;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

use crate::connections::Connections;
use crate::requests::{Create, Load, PAGE, Scan, Swap, Sweep};

/// The store on Postgres.
pub type PostgresStore = LogStore<PostgresTable>;

/// The pause of a sweep after each page, which bounds the load.
const PAUSE: Duration = Duration::from_millis(100);

/// A table of logs in Postgres, behind the caller's pool.
///
/// The table is `limiter_logs`, in the first schema of the connection's `search_path`. Clones share the pool.
///
/// # Errors
/// - [`Unavailable`](limiter_core::ErrorKind::Unavailable) if the server cannot be reached or refuses to serve,
/// - [`Timeout`](limiter_core::ErrorKind::Timeout) if it does not respond in time, or no connection of the pool becomes free,
/// - [`Configuration`](limiter_core::ErrorKind::Configuration) if there is no table, or the user may not use it.
///
/// # Cancel safety
/// A request whose future is dropped runs on in a task of the tokio runtime, for up to the [timeout](Self::timeout). Then the task
/// cancels it on the server. Its connection returns to the pool when the server has responded.
#[derive(Clone, Debug)]
pub struct PostgresTable {
    pub(crate) connections: Connections,
}

impl PostgresTable {
    /// Returns the table that the connections of `pool` find.
    ///
    /// If the pool connects with TLS, call [`cancel_with`](Self::cancel_with). For a client that is cut off from the server, set
    /// `statement_timeout` and `idle_in_transaction_session_timeout` slightly above the [timeout](Self::timeout), for example with
    /// [`Config::options`](tokio_postgres::Config::options), and
    /// [`tcp_user_timeout`](tokio_postgres::Config::tcp_user_timeout). A [`PostgresUrl`](crate::PostgresUrl) does so.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        let connections = Connections::new(pool, Arc::default(), false);
        Self { connections }
    }

    /// Sets how to connect for cancelling a request: with the TLS of the pool. Default: without TLS.
    #[must_use]
    pub fn cancel_with<T>(mut self, tls: T) -> Self
    where
        T: MakeTlsConnect<
                Socket,
                Stream: Send,
                TlsConnect: Send + Sync + TlsConnect<Socket, Future: Send>,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        self.connections = self.connections.with_tls(tls);
        self
    }

    /// Sets how long one request may take, with the wait for a connection. A call makes two. Default: 500 ms.
    ///
    /// Connecting may take longer: the request fails in time, and a later one finds the connection.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.connections = self.connections.with_timeout(timeout);
        self
    }

    /// Creates the table unless it exists, as [`SCHEMA`](crate::SCHEMA) does. Processes may call it at the same time.
    pub async fn create(&self) -> Result<(), Error> {
        self.connections.request(Create).await
    }

    /// Deletes expired logs, and returns their number. Call it about once a minute.
    ///
    /// It reads the whole table, 10,000 rows a second at most.
    pub async fn sweep(&self) -> Result<u64, Error> {
        let mut deleted = 0;
        let mut last = Vec::new();
        loop {
            let (count, end) = self.connections.request(Sweep(last)).await?;
            deleted += count.unsigned_abs();
            match end {
                None => return Ok(deleted),
                Some(end) => last = end,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns a page of up to 1,000 keys, expired ones included, and where the next page starts; `None` at the end.
    ///
    /// Start with an empty slice. A scan finds every log that exists from its beginning to its end.
    pub async fn scan(&self, after: &[u8]) -> Result<(Vec<LiveKey>, Option<Vec<u8>>), Error> {
        let mut keys = self.connections.request(Scan(after.to_vec())).await?;
        let found = keys.iter().filter_map(|key| read_key(key)).collect();
        let is_full = keys.len() as i64 >= PAGE;
        Ok((found, keys.pop().filter(|_| is_full)))
    }

    /// Returns a future that sweeps from time to time while the table is in use elsewhere. Without changes by this process, it does
    /// not, so that an idle database may sleep.
    pub(crate) fn maintain(&self, pause: Duration) -> impl Future<Output = ()> + Send + use<> {
        let in_use = self.connections.downgrade();
        async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(connections) = in_use() else { return };
                if connections
                    .backends
                    .has_changed
                    .swap(false, Ordering::Relaxed)
                {
                    // A failure shows in the calls, too.
                    let _ = Self { connections }.sweep().await;
                }
            }
        }
    }
}

#[async_trait]
impl Table for PostgresTable {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        let loaded = self.connections.request(Load(keys.to_vec())).await?;
        let (times, logs): (Vec<SystemTime>, Vec<_>) = loaded.into_iter().unzip();
        let now = times
            .first()
            .map_or(Ok(Timestamp::EPOCH), |now| (*now).try_into())?;
        Ok(Loaded { logs, now })
    }

    async fn swap(&self, changes: Vec<Change>) -> Result<bool, Error> {
        let has_changed = &self.connections.backends.has_changed;
        has_changed.store(true, Ordering::Relaxed);
        self.connections.request(Swap(changes)).await
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        // Without a runtime, dropping the worker fails its calls.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(worker);
        }
    }

    fn workers(&self) -> usize {
        self.connections.backends.pool.status().max_size
    }

    fn takes_several(&self) -> bool {
        true
    }
}
