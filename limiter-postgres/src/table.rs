//! The table of logs.

use std::fmt;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use deadpool_postgres::{GenericClient, Object, Pool};
use futures_util::future::try_join_all;
use limiter_core::store::LiveKey;
use limiter_core::{BoxFuture, Error, Timestamp};
use limiter_log::{Change, Loaded, LogStore, New, Table, async_trait, read_key};
use tokio_postgres::Row;

use crate::failure::{lost_to_another, of_pool, of_postgres, timeout};

/// The store on Postgres.
pub type PostgresStore = LogStore<PostgresTable>;

/// The statement that creates the table, for migrations by hand. It has no effect if the table exists.
///
/// An index on `expires_at` would prevent updates in place (HOT updates), which the free half of each page is for.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS limiter_logs (
    key bytea PRIMARY KEY,
    log bytea NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50)";

/// Two processes that create a table at the same time fail without a lock. Where the table exists, the user need not be allowed to
/// create one.
pub(crate) static CREATE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "DO $$ BEGIN IF to_regclass('limiter_logs') IS NULL THEN \
         PERFORM pg_advisory_xact_lock(7236834182110209); {SCHEMA}; END IF; END $$"
    )
});
/// The plan of this statement is kept. That of `LOAD` is made anew for each call.
const LOAD_ONE: &str = "SELECT clock_timestamp(), (SELECT log FROM limiter_logs WHERE key = $1)";
/// One snapshot of all logs. The subquery always uses the primary key.
const LOAD: &str = "SELECT clock_timestamp(), (SELECT log FROM limiter_logs AS logs WHERE logs.key = wanted.key) \
     FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (key, number) ORDER BY number";
const INSERT: &str =
    "INSERT INTO limiter_logs (key, log, expires_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
const UPDATE: &str =
    "UPDATE limiter_logs SET log = $2, expires_at = $3 WHERE key = $1 AND log = $4";
/// Locks the row until the transaction ends, and writes no version of it.
const COMPARE: &str = "SELECT FROM limiter_logs WHERE key = $1 AND log = $2 FOR SHARE";
const DELETE: &str = "DELETE FROM limiter_logs WHERE key = $1 AND log = $2";
/// How many rows one request of a sweep or a scan reads, so that each is short.
const PAGE: i64 = 1_000;
/// Skips rows that a swap has locked.
const SWEEP: &str = "WITH page AS (SELECT key, expires_at FROM limiter_logs WHERE key > $1 ORDER BY key LIMIT $2), \
     expired AS (SELECT key FROM limiter_logs WHERE key IN (SELECT key FROM page WHERE expires_at <= clock_timestamp()) \
     AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED), \
     deleted AS (DELETE FROM limiter_logs WHERE key IN (SELECT key FROM expired) RETURNING key) \
     SELECT (SELECT count(*) FROM deleted), (SELECT key FROM page ORDER BY key OFFSET $2 - 1)";
const SCAN: &str = "SELECT key FROM limiter_logs WHERE key > $1 ORDER BY key LIMIT $2";
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
#[derive(Clone)]
pub struct PostgresTable {
    pool: Pool,
    timeout: Duration,
}

impl PostgresTable {
    /// Returns the table that the connections of `pool` find.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        let timeout = Duration::from_millis(500);
        Self { pool, timeout }
    }

    /// Sets how long one request may take, with the wait for a connection. A call makes two. Default: 500 ms.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Creates the table unless it exists, as [`SCHEMA`] does. Processes may call it at the same time.
    pub async fn create(&self) -> Result<(), Error> {
        let create = async |client: &mut Object| client.batch_execute(&CREATE).await;
        self.request(create).await
    }

    /// Deletes expired logs, and returns their number. Call it about once a minute.
    ///
    /// It reads the whole table, 10,000 rows a second at most.
    pub async fn sweep(&self) -> Result<u64, Error> {
        let (mut deleted, mut last) = (0, Vec::<u8>::new());
        loop {
            let page = async |client: &mut Object| {
                let sweep = client.prepare_cached(SWEEP).await?;
                let row = client.query_one(&sweep, &[&last, &PAGE]).await?;
                Ok((
                    row.try_get::<_, i64>(0)?,
                    row.try_get::<_, Option<Vec<u8>>>(1)?,
                ))
            };
            let (count, end) = self.request(page).await?;
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
        let scan = async |client: &mut Object| {
            let scan = client.prepare_cached(SCAN).await?;
            let rows = client.query(&scan, &[&after, &PAGE]).await?;
            rows.iter().map(|row| row.try_get(0)).collect()
        };
        let mut keys: Vec<Vec<u8>> = self.request(scan).await?;
        let found = keys.iter().filter_map(|key| read_key(key)).collect();
        let is_full = keys.len() as i64 >= PAGE;
        Ok((found, keys.pop().filter(|_| is_full)))
    }

    /// Returns what finds the table, as long as it is in use elsewhere.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + use<> {
        let (pool, timeout) = (self.pool.weak(), self.timeout);
        move || Some(pool.upgrade()?).map(|pool| Self { pool, timeout })
    }

    /// Makes one request on a connection of the pool.
    async fn request<R>(
        &self,
        work: impl AsyncFnOnce(&mut Object) -> Result<R, tokio_postgres::Error>,
    ) -> Result<R, Error> {
        let request = async {
            let mut connection = Connection(Some(self.pool.get().await.map_err(of_pool)?));
            let Some(client) = &mut connection.0 else {
                return Err(timeout("the connection is gone"));
            };
            let result = work(client).await.map_err(|error| of_postgres(&error));
            // The response has been read: the connection may serve others.
            drop(connection.0.take());
            result
        };
        let result = tokio::time::timeout(self.timeout, request).await;
        result.unwrap_or_else(|_| Err(timeout(&format!("no response within {:?}", self.timeout))))
    }
}

/// A connection that leaves the pool if it is dropped while a request runs: the server may not respond any more.
struct Connection(Option<Object>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.take().map(Object::take);
    }
}

/// Makes one change. Returns `false` if the bytes are not the old ones.
async fn make(client: &impl GenericClient, change: &Change) -> Result<bool, tokio_postgres::Error> {
    let key = &change.key;
    let rows = match (&change.old, &change.new) {
        (Some(old), New::Saved { log, expires_at }) => {
            let update = client.prepare_cached(UPDATE).await?;
            let expires_at = system_time(*expires_at);
            client
                .execute(&update, &[key, log, &expires_at, old])
                .await?
        }
        (Some(old), New::Removed) => {
            let delete = client.prepare_cached(DELETE).await?;
            client.execute(&delete, &[key, old]).await?
        }
        (Some(old), New::Unchanged) => {
            let compare = client.prepare_cached(COMPARE).await?;
            client.execute(&compare, &[key, old]).await?
        }
        (None, New::Saved { log, expires_at }) => {
            let insert = client.prepare_cached(INSERT).await?;
            let expires_at = system_time(*expires_at);
            client.execute(&insert, &[key, log, &expires_at]).await?
        }
        (None, New::Removed | New::Unchanged) => {
            // The row keeps others from inserting until the transaction ends.
            let none = Vec::<u8>::new();
            let insert = client.prepare_cached(INSERT).await?;
            let rows = client
                .execute(&insert, &[key, &none, &SystemTime::UNIX_EPOCH])
                .await?;
            if rows > 0 {
                let delete = client.prepare_cached(DELETE).await?;
                client.execute(&delete, &[key, &none]).await?;
            }
            rows
        }
    };
    Ok(rows > 0)
}

fn system_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.as_micros())
}

/// Makes several changes in one transaction.
async fn make_all(client: &mut Object, changes: &[Change]) -> Result<bool, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    // The statements are sent in this order, without waiting for each other.
    let done = try_join_all(changes.iter().map(|change| make(&transaction, change))).await?;
    let all = done.into_iter().all(|done| done);
    if all {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(all)
}

#[async_trait]
impl Table for PostgresTable {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        let load = async |client: &mut Object| {
            let rows = match keys {
                [key] => {
                    let load = client.prepare_cached(LOAD_ONE).await?;
                    client.query(&load, &[key]).await?
                }
                keys => {
                    let load = client.prepare_cached(LOAD).await?;
                    client.query(&load, &[&keys]).await?
                }
            };
            let row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
            rows.iter()
                .map(row)
                .collect::<Result<Vec<(SystemTime, Option<Vec<u8>>)>, _>>()
        };
        let (times, logs): (Vec<SystemTime>, Vec<_>) =
            self.request(load).await?.into_iter().unzip();
        let now = times
            .first()
            .map_or(Ok(Timestamp::EPOCH), |now| (*now).try_into())?;
        Ok(Loaded { logs, now })
    }

    async fn swap(&self, changes: Vec<Change>) -> Result<bool, Error> {
        let swap = async |client: &mut Object| {
            let done = match &changes[..] {
                [change] => make(client, change).await,
                changes => make_all(client, changes).await,
            };
            done.or_else(|error| {
                if lost_to_another(&error) {
                    Ok(false)
                } else {
                    Err(error)
                }
            })
        };
        self.request(swap).await
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        // Without a runtime, dropping the worker fails its calls.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(worker);
        }
    }

    fn workers(&self) -> usize {
        self.pool.status().max_size
    }

    fn takes_several(&self) -> bool {
        true
    }
}

impl fmt::Debug for PostgresTable {
    /// Prints no address and no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTable")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
