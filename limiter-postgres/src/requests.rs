//! The requests, in SQL.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use futures_util::future::{try_join, try_join_all};
use limiter_core::Timestamp;
use limiter_log::{Change, New};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use crate::connections::{Backend, Request};
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
/// How many rows one request of a sweep or a scan reads, so that each is short.
pub(crate) const PAGE: i64 = 1_000;

/// The statements, which each connection prepares before its first request, because planning takes time. A change that waits for its
/// statement would lock its row after the next one, and might deadlock.
const STATEMENTS: [&str; 9] = [
    "SELECT clock_timestamp(), (SELECT log FROM limiter_logs WHERE key = $1)",
    // One snapshot of all logs. The subquery always uses the primary key.
    "SELECT clock_timestamp(), (SELECT log FROM limiter_logs AS logs WHERE logs.key = wanted.key) \
     FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (key, number) ORDER BY number",
    "INSERT INTO limiter_logs (key, log, expires_at) VALUES ($1, $2, $3) ON CONFLICT (key) DO NOTHING",
    "UPDATE limiter_logs SET log = $2, expires_at = $3 WHERE key = $1 AND log = $4",
    // Locks the row until the transaction ends, and writes no version of it. The last value is `true`: where a PgBouncer gives one
    // connection the statements of another, this must not be taken for the next, which deletes the row.
    "SELECT FROM limiter_logs WHERE key = $1 AND log = $2 AND $3 FOR SHARE",
    "DELETE FROM limiter_logs WHERE key = $1 AND log = $2",
    // Skips rows that a swap has locked.
    "WITH page AS (SELECT key, expires_at FROM limiter_logs WHERE key > $1 ORDER BY key LIMIT $2), \
     expired AS (SELECT key FROM limiter_logs WHERE key IN (SELECT key FROM page WHERE expires_at <= clock_timestamp()) \
     AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED), \
     deleted AS (DELETE FROM limiter_logs WHERE key IN (SELECT key FROM expired) RETURNING key) \
     SELECT (SELECT count(*) FROM deleted), (SELECT key FROM page ORDER BY key OFFSET $2 - 1)",
    "SELECT key FROM limiter_logs WHERE key > $1 ORDER BY key LIMIT $2",
    // No log has the empty key. A time that is too far off is from before the server's clock was mended.
    "INSERT INTO limiter_logs AS logs (key, log, expires_at) VALUES ('', '', clock_timestamp() + $1::float8 * interval '1s') \
     ON CONFLICT (key) DO UPDATE SET expires_at = EXCLUDED.expires_at \
     WHERE logs.expires_at NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '1h'",
];
/// The plan of this statement is kept. That of `LOAD` is made anew for each call.
const LOAD_ONE: usize = 0;
const LOAD: usize = 1;
const INSERT: usize = 2;
const UPDATE: usize = 3;
const COMPARE: usize = 4;
const DELETE: usize = 5;
const SWEEP: usize = 6;
const SCAN: usize = 7;
const CLAIM: usize = 8;

/// The types of their values.
const TYPES: [&[Type]; 9] = [
    &[Type::BYTEA],
    &[Type::BYTEA_ARRAY],
    &[Type::BYTEA, Type::BYTEA, Type::TIMESTAMPTZ],
    &[Type::BYTEA, Type::BYTEA, Type::TIMESTAMPTZ, Type::BYTEA],
    &[Type::BYTEA, Type::BYTEA, Type::BOOL],
    &[Type::BYTEA, Type::BYTEA],
    &[Type::BYTEA, Type::INT8],
    &[Type::BYTEA, Type::INT8],
    &[Type::FLOAT8],
];

/// Creates the table if it must, and prepares the statements unless they would get lost, in one round trip or two.
pub(crate) async fn prepare(
    client: &Client,
    creates: bool,
    prepares: bool,
) -> Result<Vec<Statement>, Error> {
    let create = async {
        if creates {
            client.batch_execute(&CREATE).await?;
        }
        Ok(())
    };
    let statements = STATEMENTS.iter().filter(|_| prepares);
    let statements = try_join_all(statements.map(|statement| client.prepare(statement)));
    let (_, statements) = try_join(create, statements).await?;
    Ok(statements)
}

type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

fn typed(statement: usize, values: Values<'_>) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let types = TYPES[statement].iter().cloned();
    values.iter().copied().zip(types).collect()
}

impl Backend {
    async fn query(&self, statement: usize, values: Values<'_>) -> Result<Vec<Row>, Error> {
        let (text, client) = (STATEMENTS[statement], &self.client);
        match self.statements.get(statement) {
            Some(prepared) => client.query(prepared, values).await,
            None => client.query_typed(text, &typed(statement, values)).await,
        }
    }

    async fn execute(&self, statement: usize, values: Values<'_>) -> Result<u64, Error> {
        let (text, client) = (STATEMENTS[statement], &self.client);
        match self.statements.get(statement) {
            Some(prepared) => client.execute(prepared, values).await,
            None => client.execute_typed(text, &typed(statement, values)).await,
        }
    }
}

/// Loads the logs of keys, each with the time.
pub(crate) struct Load(pub(crate) Vec<Vec<u8>>);

impl Request for Load {
    type Reply = Vec<(SystemTime, Option<Vec<u8>>)>;
    const ONLY_READS: bool = true;

    async fn send(&self, backend: &Backend) -> Result<Self::Reply, Error> {
        let rows = match &self.0[..] {
            [key] => backend.query(LOAD_ONE, &[key]).await?,
            keys => backend.query(LOAD, &[&keys]).await?,
        };
        let row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(row).collect()
    }
}

/// Makes all changes or none. Replies `false` if the bytes of one are not the old ones.
pub(crate) struct Swap(pub(crate) Vec<Change>);

impl Request for Swap {
    type Reply = bool;

    async fn send(&self, backend: &Backend) -> Result<bool, Error> {
        let swapped = match &self.0[..] {
            [change] => make(backend, change).await,
            changes => make_all(backend, changes).await,
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
async fn make(backend: &Backend, change: &Change) -> Result<bool, Error> {
    let key = &change.key;
    let rows = match (&change.old, &change.new) {
        (Some(old), New::Saved { log, expires_at }) => {
            let expires_at = system_time(*expires_at);
            backend
                .execute(UPDATE, &[key, log, &expires_at, old])
                .await?
        }
        (Some(old), New::Removed) => backend.execute(DELETE, &[key, old]).await?,
        (Some(old), New::Unchanged) => backend.execute(COMPARE, &[key, old, &true]).await?,
        (None, New::Saved { log, expires_at }) => {
            let expires_at = system_time(*expires_at);
            backend.execute(INSERT, &[key, log, &expires_at]).await?
        }
        (None, New::Removed | New::Unchanged) => {
            // The row keeps others from inserting until the transaction ends.
            let none = Vec::<u8>::new();
            let rows = backend
                .execute(INSERT, &[key, &none, &SystemTime::UNIX_EPOCH])
                .await?;
            if rows > 0 {
                backend.execute(DELETE, &[key, &none]).await?;
            }
            rows
        }
    };
    Ok(rows > 0)
}

fn system_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.as_micros())
}

/// Makes several changes in two round trips: sends the beginning of a transaction and the changes without waiting in between, and then
/// its end. After an error or a cancellation, the rest of the changes fails immediately, and the end waits for it.
async fn make_all(backend: &Backend, changes: &[Change]) -> Result<bool, Error> {
    let begin = backend.client.batch_execute("BEGIN");
    let made = try_join_all(changes.iter().map(|change| make(backend, change)));
    let done = try_join(begin, made).await;
    let is_kept = done
        .as_ref()
        .is_ok_and(|(_, made)| made.iter().all(|made| *made));
    let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
    let ended = backend.client.batch_execute(end).await;
    done?;
    ended.map(|()| is_kept)
}

/// Deletes the expired rows of a page that follows a key. Replies with their number, and the page's last key unless it is the last page.
pub(crate) struct Sweep(pub(crate) Vec<u8>);

impl Request for Sweep {
    type Reply = (i64, Option<Vec<u8>>);

    async fn send(&self, backend: &Backend) -> Result<Self::Reply, Error> {
        let rows = backend.query(SWEEP, &[&self.0, &PAGE]).await?;
        rows.first()
            .map_or(Ok((0, None)), |row| Ok((row.try_get(0)?, row.try_get(1)?)))
    }
}

/// Begins a sweep, for this process alone, and for this long at most. Replies `false` if another process sweeps, or did so just now.
pub(crate) struct Claim(pub(crate) Duration);

impl Request for Claim {
    type Reply = bool;

    async fn send(&self, backend: &Backend) -> Result<bool, Error> {
        let rows = backend.execute(CLAIM, &[&self.0.as_secs_f64()]).await?;
        Ok(rows > 0)
    }
}

/// Reads a page of keys that follows a key.
pub(crate) struct Scan(pub(crate) Vec<u8>);

impl Request for Scan {
    type Reply = Vec<Vec<u8>>;
    const ONLY_READS: bool = true;

    async fn send(&self, backend: &Backend) -> Result<Self::Reply, Error> {
        let rows = backend.query(SCAN, &[&self.0, &PAGE]).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}
