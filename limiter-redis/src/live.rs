//! Looking at live keys, for operators.

use std::time::Duration;

use limiter_core::store::LogKey;
use limiter_core::{Error, ErrorKind, Name, Timestamp};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

use crate::connection::{Connection, Kind};
use crate::key::StoredKey;
use crate::reply::{integer, unexpected};
use crate::script::INSPECT;
use crate::{RedisStore, attempt::Attempt};

/// A log as Redis holds it, including expired entries that no append has dropped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogInfo {
    /// The number of entries.
    pub entries: u64,
    /// The sum of their costs.
    pub cost: u64,
    /// The time of the oldest entry.
    pub oldest: Timestamp,
    /// The time of the newest entry.
    pub newest: Timestamp,
    /// How long Redis keeps the key if nothing is appended. `None` for a key without a time to live, which no limiter makes.
    pub expires_in: Option<Duration>,
    /// The memory that the key takes by `MEMORY USAGE`, in bytes.
    pub bytes: u64,
}

/// A log that a scan found. [`Debug`](std::fmt::Debug) does not print the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveKey {
    /// The name of the limiter.
    pub name: String,
    /// The key, or what is known of it.
    pub key: StoredKey,
    /// The number of members of the sorted set, 0 if the Redis key holds something else. There is one for each entry, and one
    /// for each caller's id.
    pub members: u64,
}

/// Where a scan continues.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The nodes of a cluster that are left, the current one last. One server is a node without an address.
    nodes: Vec<Option<(String, u16)>>,
    position: u64,
}

/// A page of a scan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The keys, in no order. A key may appear twice if Redis resizes its table during the scan, or if a slot moves.
    pub keys: Vec<LiveKey>,
    /// Where to continue; `None` at the end.
    pub next: Option<Cursor>,
}

/// How many sizes one pipeline asks for.
const BATCH: usize = 256;

fn zcard(stored: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("ZCARD");
    cmd.arg(stored);
    cmd
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Returns what Redis holds for a log; `None` if nothing.
    ///
    /// # Errors
    /// [`Corrupt`](limiter_core::ErrorKind::Corrupt) if it is not a log, and whatever keeps Redis from answering.
    pub async fn inspect(&self, log: LogKey<'_>) -> Result<Option<LogInfo>, Error> {
        let stored = self.keys.encode(log);
        let reply = self.run(log, &stored, |attempt| INSPECT.call(attempt.load, &stored, &[])).await?.value;
        log_info(&reply).map_err(|error| error.with_log(log))
    }
}

fn log_info(reply: &Value) -> Result<Option<LogInfo>, Error> {
    let Value::Array(items) = reply else { return Err(unexpected(reply)) };
    if items.is_empty() {
        return Ok(None);
    }
    let [entries, cost, oldest, newest, expires, bytes] = &items[..] else { return Err(unexpected(reply)) };
    let number = |item| integer(item).map(|n| u64::try_from(n).unwrap_or(0));
    let time = |item| number(item).map(Timestamp::from_micros_saturating);
    Ok(Some(LogInfo {
        entries: number(entries)?,
        cost: number(cost)?,
        oldest: time(oldest)?,
        newest: time(newest)?,
        expires_in: u64::try_from(integer(expires)?).ok().map(Duration::from_millis),
        bytes: number(bytes)?,
    }))
}

impl RedisStore {
    /// Returns some of the keys that hold a log, of all limiters under the store's prefix.
    ///
    /// A scan begins with `None` and goes on from [`Page::next`] until there is none. Redis looks at about `count` keys of the
    /// *database* for a page, so a page may be empty. A key that exists during the whole scan is found.
    ///
    /// It uses `SCAN` and never blocks the server. The sizes of the keys are asked for in batches.
    ///
    /// # Errors
    /// Whatever keeps Redis from answering.
    pub async fn scan(&self, from: Option<Cursor>, count: usize) -> Result<Page, Error> {
        self.scan_matching(None, from, count).await
    }

    /// Returns some of the keys of the limiter called `name`. Otherwise as [`scan`](Self::scan).
    ///
    /// Redis still looks at the whole database, but it returns only these keys.
    ///
    /// # Errors
    /// Whatever keeps Redis from answering.
    pub async fn scan_name(&self, name: impl Into<Name>, from: Option<Cursor>, count: usize) -> Result<Page, Error> {
        self.scan_matching(Some(name.into()), from, count).await
    }

    async fn scan_matching(&self, name: Option<Name>, from: Option<Cursor>, count: usize) -> Result<Page, Error> {
        let mut cursor = match from {
            Some(cursor) => cursor,
            None => Cursor { nodes: self.nodes().await?, position: 0 },
        };
        let Some(node) = cursor.nodes.last().cloned() else { return Ok(Page { keys: Vec::new(), next: None }) };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.position).arg("MATCH").arg(self.keys.pattern(name)).arg("COUNT").arg(count.max(1));
        let reply = self.send_to(node.as_ref(), scan).await?;
        let (position, stored) = found(&reply).ok_or_else(|| unexpected(&reply))?;
        let found: Vec<Found> = stored.into_iter().filter_map(|stored| self.found(stored)).collect();
        let mut keys = Vec::new();
        for part in found.chunks(BATCH) {
            let sizes = self.sizes(node.as_ref(), part).await;
            for (i, found) in part.iter().enumerate() {
                let size = match sizes.get(i) {
                    Some(Value::Int(size)) => Ok(*size),
                    // The key may have moved to another node, or the batch was lost.
                    _ => self.size(&found.stored).await,
                };
                let members = match size {
                    // The key has gone in the meantime.
                    Ok(0) => continue,
                    Ok(members) => u64::try_from(members).unwrap_or(0),
                    Err(error) if error.kind() == ErrorKind::Corrupt => 0,
                    Err(error) => return Err(error),
                };
                keys.push(LiveKey { name: found.name.clone(), key: found.key.clone(), members });
            }
        }
        cursor.position = position;
        if position == 0 {
            cursor.nodes.pop();
        }
        Ok(Page { keys, next: (!cursor.nodes.is_empty()).then_some(cursor) })
    }

    fn found(&self, stored: Vec<u8>) -> Option<Found> {
        let (name, key) = self.keys.decode(&stored)?;
        Some(Found { name, key, stored })
    }

    /// Asks one node for the sizes of sorted sets. Returns nothing if it does not answer in time.
    async fn sizes(&self, node: Option<&(String, u16)>, found: &[Found]) -> Vec<Value> {
        let mut pipeline = Pipeline::with_capacity(found.len());
        for found in found {
            pipeline.add_command(zcard(&found.stored));
        }
        let (count, limit) = (found.len(), self.retry_policy.response_timeout);
        let answers = match &self.connection.0 {
            Kind::Single(manager) => timeout(limit, manager.clone().req_packed_commands(&pipeline, 0, count)).await,
            #[cfg(feature = "cluster")]
            Kind::Cluster(cluster) => {
                let mut node = crate::cluster::Node::new(cluster.clone(), node);
                timeout(limit, node.req_packed_commands(&pipeline, 0, count)).await
            }
        };
        #[cfg(not(feature = "cluster"))]
        let _ = node;
        answers.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn size(&self, stored: &[u8]) -> Result<i64, Error> {
        let answer = self.retry_policy.run(&self.connection, |_: Attempt| zcard(stored)).await;
        integer(&answer.map_err(|failure| failure.into_error(stored))?.value)
    }

    async fn nodes(&self) -> Result<Vec<Option<(String, u16)>>, Error> {
        match &self.connection.0 {
            Kind::Single(_) => Ok(vec![None]),
            #[cfg(feature = "cluster")]
            Kind::Cluster(_) => {
                let mut slots = redis::cmd("CLUSTER");
                slots.arg("SLOTS");
                let reply = self.send_to(None, slots).await?;
                let masters = crate::cluster::masters(&reply).ok_or_else(|| unexpected(&reply))?;
                Ok(masters.into_iter().map(Some).collect())
            }
        }
    }

    /// Sends a command to a node of a cluster, or to any.
    async fn send_to(&self, node: Option<&(String, u16)>, cmd: Cmd) -> Result<Value, Error> {
        match (&self.connection.0, node) {
            #[cfg(feature = "cluster")]
            (Kind::Cluster(cluster), node) => {
                let node = crate::cluster::Node::new(cluster.clone(), node);
                self.retry_policy.run(&node, |_| cmd.clone()).await
            }
            _ => self.retry_policy.run::<Connection>(&self.connection, |_| cmd.clone()).await,
        }
        .map(|answer| answer.value)
        .map_err(|failure| failure.into_error(b""))
    }
}

/// A Redis key that a scan found.
struct Found {
    name: String,
    key: StoredKey,
    stored: Vec<u8>,
}

/// Returns the next position and the keys in an answer to `SCAN`.
fn found(reply: &Value) -> Option<(u64, Vec<Vec<u8>>)> {
    redis::from_redis_value_ref(reply).ok()
}
