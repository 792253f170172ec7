//! A connection with the statements, in SQL.

use std::sync::LazyLock;

use futures_util::future::{try_join, try_join_all};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row, Statement};

use crate::connect::Session;

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
/// The statements, which each connection prepares before its first request, because planning takes time. A change that waits for its
/// statement would lock its row after the next one, and might deadlock.
const STATEMENTS: [&str; 8] = [
    "SELECT clock_timestamp(), (SELECT log FROM limiter_logs WHERE key = $1)",
    // One snapshot of all logs. The subquery always uses the primary key.
    "SELECT clock_timestamp(), (SELECT log FROM limiter_logs AS logs WHERE logs.key = wanted.key) \
     FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (key, number) ORDER BY number",
    "INSERT INTO limiter_logs (key, log, expires_at) SELECT $1::bytea, $2::bytea, $3::timestamptz WHERE clock_timestamp() < $4 \
     ON CONFLICT (key) DO NOTHING",
    "UPDATE limiter_logs SET log = $2, expires_at = $3 WHERE key = $1 AND log = $4",
    // Locks the row until the transaction ends, and writes no version of it. The last value is `true`: where a PgBouncer gives one
    // connection the statements of another, no statement of another release, which may delete the row, has these values.
    "SELECT FROM limiter_logs WHERE key = $1 AND log = $2 AND $3 FOR SHARE",
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
/// Postgres keeps this statement's plan, and plans `LOAD` for each call.
pub(crate) const LOAD_ONE: usize = 0;
pub(crate) const LOAD: usize = 1;
pub(crate) const INSERT: usize = 2;
pub(crate) const UPDATE: usize = 3;
pub(crate) const COMPARE: usize = 4;
pub(crate) const SWEEP: usize = 5;
pub(crate) const SCAN: usize = 6;
pub(crate) const CLAIM: usize = 7;

/// The types of their values.
const TYPES: [&[Type]; 8] = [
    &[Type::BYTEA],
    &[Type::BYTEA_ARRAY],
    &[
        Type::BYTEA,
        Type::BYTEA,
        Type::TIMESTAMPTZ,
        Type::TIMESTAMPTZ,
    ],
    &[Type::BYTEA, Type::BYTEA, Type::TIMESTAMPTZ, Type::BYTEA],
    &[Type::BYTEA, Type::BYTEA, Type::BOOL],
    &[Type::BYTEA, Type::INT8],
    &[Type::BYTEA, Type::INT8],
    &[Type::FLOAT8],
];

pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

fn typed(statement: usize, values: Values<'_>) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let types = TYPES[statement].iter().cloned();
    values.iter().copied().zip(types).collect()
}

/// A connection to the server, with its prepared statements.
pub(crate) struct Backend {
    pub(crate) session: Session,
    pub(crate) statements: Vec<Statement>,
    /// One of as many as there may be backends.
    slot: OwnedSemaphorePermit,
}

impl Backend {
    pub(crate) fn new(session: Session, slot: OwnedSemaphorePermit) -> Self {
        let statements = Vec::new();
        Self {
            session,
            statements,
            slot,
        }
    }

    /// Creates the table if it must, and prepares the statements unless they would get lost, in one round trip or two.
    pub(crate) async fn prepare(
        &self,
        creates: bool,
        prepares: bool,
    ) -> Result<Vec<Statement>, Error> {
        let client = &self.session.client;
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

    /// Closes the connection in a task. Others may take its place once the server has ended its backend.
    pub(crate) fn close(self) {
        let Self { session, slot, .. } = self;
        tokio::spawn(async move {
            session.close().await;
            drop(slot);
        });
    }

    pub(crate) async fn query(
        &self,
        statement: usize,
        values: Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        let (text, client) = (STATEMENTS[statement], &self.session.client);
        match self.statements.get(statement) {
            Some(prepared) => client.query(prepared, values).await,
            None => client.query_typed(text, &typed(statement, values)).await,
        }
    }

    pub(crate) async fn execute(&self, statement: usize, values: Values<'_>) -> Result<u64, Error> {
        let (text, client) = (STATEMENTS[statement], &self.session.client);
        match self.statements.get(statement) {
            Some(prepared) => client.execute(prepared, values).await,
            None => client.execute_typed(text, &typed(statement, values)).await,
        }
    }
}
