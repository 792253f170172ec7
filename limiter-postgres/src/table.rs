//! The table of logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use limiter_core::store::LiveKey;
use limiter_core::{BoxFuture, Error, Timestamp};
use limiter_log::{Change, Loaded, LogStore, Table, async_trait, read_key};

use crate::connections::Connections;
use crate::failure::configuration;
use crate::requests::{Claim, Load, PAGE, Request, Scan, Swap, Sweep};

/// The store on Postgres.
pub type PostgresStore = LogStore<PostgresTable>;

/// The pause of a sweep after each page, which bounds the load.
const PAUSE: Duration = Duration::from_millis(100);

/// The default of [`timeout`](PostgresTable::timeout).
const TIMEOUT: Duration = Duration::from_millis(500);
/// How much longer the server's own timeout is.
const LEEWAY: Duration = Duration::from_millis(100);
/// The longest timeout; a longer one would overflow.
const MOST_PATIENCE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A table of logs in Postgres, which a [`PostgresUrl`](crate::PostgresUrl) opens.
///
/// The table is `limiter_logs`, in the first schema of the connection's `search_path`. Clones share the connections.
///
/// # Errors
/// - [`Unavailable`](limiter_core::ErrorKind::Unavailable) if the server cannot be reached or refuses to serve,
/// - [`Timeout`](limiter_core::ErrorKind::Timeout) if it does not respond in time, or no connection becomes free,
/// - [`Configuration`](limiter_core::ErrorKind::Configuration) if there is no table, or the user may not use it, or outside a tokio
///   runtime.
///
/// # Cancel safety
/// A request whose future is dropped runs on in a task of the tokio runtime, for up to the [timeout](Self::timeout). Then the task
/// cancels it on the server. Its connection serves others when the server has responded.
#[derive(Clone, Debug)]
pub struct PostgresTable {
    connections: Arc<Connections>,
    timeout: Duration,
}

impl PostgresTable {
    pub(crate) fn new(connections: Connections) -> Self {
        let connections = Arc::new(connections);
        let table = Self {
            connections,
            timeout: TIMEOUT,
        };
        table.timeout(TIMEOUT)
    }

    async fn request<R: Request>(&self, request: R) -> Result<R::Reply, Error> {
        self.connections.request(request, self.timeout).await
    }

    /// Sets how long one request may take, including the wait for a connection. A call makes two. Default: 500 ms.
    ///
    /// Connecting may take longer: the request fails in time, and a later one finds the connection. The server gets a slightly longer
    /// timeout with each new connection. Clones share that one: the last call of this method sets it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MOST_PATIENCE);
        // Cancelling comes first; this is for a client that cannot.
        let millis = (self.timeout + LEEWAY).as_millis() as u64;
        let server_timeout = &self.connections.server_timeout;
        server_timeout.store(millis, Ordering::Relaxed);
        self
    }

    /// Creates the table unless it exists, as [`SCHEMA`](crate::SCHEMA) does, now and with later connections. Processes may call it at
    /// the same time.
    pub async fn create(&self) -> Result<(), Error> {
        self.connections.creates.store(true, Ordering::Relaxed);
        self.request(Load(Vec::new())).await.map(drop)
    }

    /// Deletes expired logs, and returns their number. Call it about once a minute.
    ///
    /// It reads the whole table, 10,000 rows a second at most.
    pub async fn sweep(&self) -> Result<u64, Error> {
        let mut deleted = 0;
        let mut last = Vec::new();
        loop {
            let (count, end) = self.request(Sweep(last)).await?;
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
        let mut keys = self.request(Scan(after.to_vec())).await?;
        let found = keys.iter().filter_map(|key| read_key(key)).collect();
        let is_full = keys.len() as i64 >= PAGE;
        Ok((found, keys.pop().filter(|_| is_full)))
    }

    /// Returns a future that sweeps from time to time while the table is in use elsewhere, unless another process does. Without changes
    /// by this process, it does not, so that an idle database may sleep.
    pub(crate) fn maintain(&self, pause: Duration) -> impl Future<Output = ()> + Send + use<> {
        let connections = Arc::downgrade(&self.connections);
        async move {
            let mut took = Duration::ZERO;
            loop {
                tokio::time::sleep(pause).await;
                let Some(connections) = connections.upgrade() else {
                    return;
                };
                if connections.has_changed.swap(false, Ordering::Relaxed) {
                    let millis = connections.server_timeout.load(Ordering::Relaxed);
                    let table = Self {
                        connections,
                        timeout: Duration::from_millis(millis) - LEEWAY,
                    };
                    let start = Instant::now();
                    // Other processes try once a pause, so the first of them finds an end a little before it.
                    match table.sweep_alone(pause * 9 / 10 + took).await {
                        Ok(true) => took = start.elapsed(),
                        other => {
                            let has_changed = &table.connections.has_changed;
                            has_changed.store(true, Ordering::Relaxed);
                            // Calls do not show a missing permission to delete, or a page that takes too long.
                            if let Err(error) = other {
                                tracing::warn!("sweeping expired logs failed: {error}");
                            }
                        }
                    }
                }
            }
        }
    }

    /// Sweeps, unless another process does or did so just now.
    async fn sweep_alone(&self, most: Duration) -> Result<bool, Error> {
        let most = most.min(Duration::from_secs(60 * 60));
        let is_claimed = self.request(Claim(most)).await?;
        if is_claimed {
            self.sweep().await?;
        }
        Ok(is_claimed)
    }
}

#[async_trait]
impl Table for PostgresTable {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        let loaded = self.request(Load(keys.to_vec())).await?;
        let (times, logs): (Vec<SystemTime>, Vec<_>) = loaded.into_iter().unzip();
        let now = times.first().copied().unwrap_or(SystemTime::UNIX_EPOCH);
        let now = now.try_into();
        let now = now.map_err(|error| configuration(format!("Postgres' clock: {error}")))?;
        Ok(Loaded { logs, now })
    }

    async fn swap(&self, changes: Vec<Change>, until: Timestamp) -> Result<bool, Error> {
        let has_changed = &self.connections.has_changed;
        has_changed.store(true, Ordering::Relaxed);
        self.request(Swap(changes, until)).await
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(worker)),
            // Each request fails immediately, with an error that states why.
            Err(_) => drop(worker.now_or_never()),
        }
    }

    fn workers(&self) -> usize {
        self.connections.most
    }

    fn takes_several(&self) -> bool {
        true
    }
}
