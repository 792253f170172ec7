//! The requests, in SQL.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use deadpool_postgres::Object;
use futures_util::future::{try_join, try_join_all};
use limiter_core::Timestamp;
use limiter_log::{Change, New, async_trait};
use tokio_postgres::{Error, Row};

use crate::connections::Request;
use crate::failure::is_lost;

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
static CREATE: LazyLock<String> = LazyLock::new(|| {
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
/// The statements of decisions, which each connection prepares.
pub(crate) const STATEMENTS: [&str; 6] = [LOAD_ONE, LOAD, INSERT, UPDATE, COMPARE, DELETE];
/// How many rows one request of a sweep or a scan reads, so that each is short.
pub(crate) const PAGE: i64 = 1_000;
/// Skips rows that a swap has locked.
const SWEEP: &str = "WITH page AS (SELECT key, expires_at FROM limiter_logs WHERE key > $1 ORDER BY key LIMIT $2), \
     expired AS (SELECT key FROM limiter_logs WHERE key IN (SELECT key FROM page WHERE expires_at <= clock_timestamp()) \
     AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED), \
     deleted AS (DELETE FROM limiter_logs WHERE key IN (SELECT key FROM expired) RETURNING key) \
     SELECT (SELECT count(*) FROM deleted), (SELECT key FROM page ORDER BY key OFFSET $2 - 1)";
const SCAN: &str = "SELECT key FROM limiter_logs WHERE key > $1 ORDER BY key LIMIT $2";

pub(crate) struct Create;

#[async_trait]
impl Request for Create {
    type Reply = ();
    const IS_PREPARED: bool = false;

    async fn send(&self, client: &mut Object) -> Result<(), Error> {
        client.batch_execute(&CREATE).await
    }
}

/// Loads the logs of keys, each with the time.
pub(crate) struct Load(pub(crate) Vec<Vec<u8>>);

#[async_trait]
impl Request for Load {
    type Reply = Vec<(SystemTime, Option<Vec<u8>>)>;

    async fn send(&self, client: &mut Object) -> Result<Self::Reply, Error> {
        let rows = match &self.0[..] {
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
        rows.iter().map(row).collect()
    }
}

/// Makes all changes or none.
pub(crate) struct Swap(pub(crate) Vec<Change>);

#[async_trait]
impl Request for Swap {
    type Reply = bool;

    async fn send(&self, client: &mut Object) -> Result<bool, Error> {
        let swapped = match &self.0[..] {
            [change] => make(client, change).await,
            changes => make_all(client, changes).await,
        };
        swapped.or_else(|error| {
            if is_lost(&error) {
                Ok(false)
            } else {
                Err(error)
            }
        })
    }
}

/// Makes one change. Returns `false` if the bytes are not the old ones.
async fn make(client: &Object, change: &Change) -> Result<bool, Error> {
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
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [key, &none, &SystemTime::UNIX_EPOCH];
            let rows = client.execute(&insert, &values).await?;
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

/// Makes a connection ready: creates the table if it must, and prepares the statements.
pub(crate) struct Prepare {
    pub(crate) creates: bool,
}

#[async_trait]
impl Request for Prepare {
    type Reply = ();

    async fn send(&self, client: &mut Object) -> Result<(), Error> {
        let client = &*client;
        let create = async {
            if self.creates {
                client.batch_execute(&CREATE).await?;
            }
            Ok(())
        };
        let prepared = try_join(create, prepare(client));
        transaction(client, prepared, |_| true).await.map(drop)
    }
}

/// Prepares all statements that the connection does not have.
async fn prepare(client: &Object) -> Result<(), Error> {
    let prepare = |statement: &&'static str| client.prepare_cached(statement);
    try_join_all(STATEMENTS.iter().map(prepare)).await.map(drop)
}

/// Makes several changes. Returns `false`, and has made none, if the bytes of one are not the old ones.
async fn make_all(client: &Object, changes: &[Change]) -> Result<bool, Error> {
    // A change that waits for its statement would lock its row after the next one, and might deadlock.
    prepare(client).await?;
    let all = |made: &Vec<bool>| made.iter().all(|made| *made);
    let made = try_join_all(changes.iter().map(|change| make(client, change)));
    transaction(client, made, all).await.map(|made| all(&made))
}

/// Makes a transaction in two round trips: sends its beginning and the work without waiting in between, and then its end.
///
/// After an error or a cancellation, the rest of the work fails immediately, and the end waits for it.
async fn transaction<T>(
    client: &Object,
    work: impl Future<Output = Result<T, Error>>,
    is_kept: impl FnOnce(&T) -> bool,
) -> Result<T, Error> {
    let done = try_join(client.batch_execute("BEGIN"), work).await;
    let is_kept = done.as_ref().is_ok_and(|(_, result)| is_kept(result));
    let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    let (_, result) = done?;
    ended.map(|()| result)
}

/// Deletes the expired rows of a page that follows a key. Replies with their number, and the page's last key unless it is the last page.
pub(crate) struct Sweep(pub(crate) Vec<u8>);

#[async_trait]
impl Request for Sweep {
    type Reply = (i64, Option<Vec<u8>>);

    async fn send(&self, client: &mut Object) -> Result<Self::Reply, Error> {
        let sweep = client.prepare_cached(SWEEP).await?;
        let row = client.query_one(&sweep, &[&self.0, &PAGE]).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }
}

/// Reads a page of keys that follows a key.
pub(crate) struct Scan(pub(crate) Vec<u8>);

#[async_trait]
impl Request for Scan {
    type Reply = Vec<Vec<u8>>;

    async fn send(&self, client: &mut Object) -> Result<Self::Reply, Error> {
        let scan = client.prepare_cached(SCAN).await?;
        let rows = client.query(&scan, &[&self.0, &PAGE]).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}
