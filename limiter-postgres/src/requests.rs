//! The requests of a table.

use std::time::{Duration, SystemTime};

use futures_util::future::{try_join, try_join_all};
use limiter_core::Timestamp;
use limiter_log::{Change, New};
use tokio_postgres::{Error, Row};

use crate::backend::{
    Backend, CLAIM, COMPARE, INSERT, LOAD, LOAD_ONE, SCAN, SWEEP, UPDATE, Values,
};
use crate::failure::is_lost;

/// How many rows one request of a sweep or a scan reads, so that each is short.
pub(crate) const PAGE: i64 = 1_000;

/// A request to the server. It runs again if the table was missing or has changed, if it was cancelled before its time, or if
/// it only reads and its connection was lost.
pub(crate) trait Request: Send + Sync + 'static {
    type Reply: Send + 'static;
    /// Whether it may run again after a connection was lost.
    const ONLY_READS: bool = false;

    fn send(&self, backend: &Backend) -> impl Future<Output = Result<Self::Reply, Error>> + Send;
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

/// Makes all changes or none, until a time. Replies `false` if the bytes of one are not the old ones.
pub(crate) struct Swap(pub(crate) Vec<Change>, pub(crate) Timestamp);

impl Request for Swap {
    type Reply = bool;

    async fn send(&self, backend: &Backend) -> Result<bool, Error> {
        let swapped = match &self.0[..] {
            [change] => self.make(backend, change).await,
            _ => self.make_all(backend).await,
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

impl Swap {
    /// Makes one change. Returns `false` if the bytes are not the old ones.
    async fn make(&self, backend: &Backend, change: &Change) -> Result<bool, Error> {
        let key = &change.key;
        let rows = match (&change.old, &change.new) {
            (Some(old), New::Unchanged) => backend.execute(COMPARE, &[key, old, &true]).await?,
            (Some(old), New::Saved { log, expires_at }) => {
                let values: Values<'_> = &[key, log, &system_time(*expires_at), old];
                backend.execute(UPDATE, values).await?
            }
            (None, New::Saved { log, expires_at }) => {
                let times = [*expires_at, self.1].map(system_time);
                let values: Values<'_> = &[key, log, &times[0], &times[1]];
                backend.execute(INSERT, values).await?
            }
            // The contract of `New` excludes it.
            (None, New::Unchanged) => 0,
        };
        Ok(rows > 0)
    }

    /// Makes several changes in two round trips: sends the beginning of a transaction and the changes without waiting in between, and then
    /// its end. After an error or a cancellation, the rest of the changes fails immediately, and the end waits for it.
    async fn make_all(&self, backend: &Backend) -> Result<bool, Error> {
        let client = &backend.session.client;
        let begin = client.batch_execute("BEGIN");
        let made = try_join_all(self.0.iter().map(|change| self.make(backend, change)));
        let done = try_join(begin, made).await;
        let is_kept = done
            .as_ref()
            .is_ok_and(|(_, made)| made.iter().all(|made| *made));
        let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
        let ended = client.batch_execute(end).await;
        done?;
        ended.map(|()| is_kept)
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.as_micros())
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
