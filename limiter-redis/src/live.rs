//! Looking at live keys, for operators.

use std::time::Duration;

use limiter_core::{Error, ErrorKind, Timestamp};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

use crate::connection::{Connection, Kind};
use crate::failure::Failure;
use crate::key::StoredKey;
use crate::reply::{integer, unexpected};
use crate::script::INSPECT;
use crate::{RedisStore, attempt::Attempt};

/// A log as it lies in Redis, expired entries that no append has dropped yet included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogInfo {
    /// How many entries it has.
    pub entries: u64,
    /// The sum of their costs.
    pub cost: u64,
    /// The time of the oldest.
    pub oldest: Timestamp,
    /// The time of the newest.
    pub newest: Timestamp,
    /// How long Redis keeps the key, if nothing is appended; `None` if for ever, which no limiter asked for.
    pub expires_in: Option<Duration>,
    /// The memory that Redis says the key takes, in bytes.
    pub bytes: u64,
}

/// A key that [`RedisStore::scan`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveKey {
    /// The user's key, or what is known of it.
    pub key: StoredKey,
    /// The members of its sorted set: at least its entries, and up to twice as many where callers chose ids.
    pub members: u64,
}

/// Where a scan goes on.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The nodes of a cluster that are left, the present one last; one of no name where there is one server.
    nodes: Vec<Option<(String, u16)>>,
    position: u64,
}

/// A part of the keys.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The keys, in no order. A key may come up twice if Redis rearranges its table meanwhile, or a slot moves.
    pub keys: Vec<LiveKey>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

/// How many sizes are asked for at once.
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
    /// What Redis holds for `key`; `None` if nothing.
    ///
    /// # Errors
    /// [`Corrupt`](limiter_core::ErrorKind::Corrupt) if it is not a log, and whatever keeps Redis from answering.
    pub async fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Option<LogInfo>, Error> {
        let key = key.as_ref();
        let stored = self.keys.encode(key);
        let reply = self.run(key, &stored, |attempt| INSPECT.call(attempt.bring, &stored, &[])).await?.value;
        let Value::Array(items) = &reply else { return Err(unexpected(&reply)) };
        if items.is_empty() {
            return Ok(None);
        }
        let [entries, cost, oldest, newest, expires, bytes] = &items[..] else { return Err(unexpected(&reply)) };
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
}

impl RedisStore {
    /// Some of the keys that hold a log: all of them, page by page, from `None` on until there is no next page. About
    /// `count` keys of the *database* are looked at for a page, so a page may be empty.
    ///
    /// It uses `SCAN` and never blocks the server; the sizes of a page's keys are asked for in batches. A key that exists
    /// during the whole scan is found.
    ///
    /// # Errors
    /// Whatever keeps Redis from answering.
    pub async fn scan(&self, from: Option<Cursor>, count: usize) -> Result<Page, Error> {
        let mut cursor = match from {
            Some(cursor) => cursor,
            None => Cursor { nodes: self.nodes().await?, position: 0 },
        };
        let Some(node) = cursor.nodes.last().cloned() else { return Ok(Page { keys: Vec::new(), next: None }) };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.position).arg("MATCH").arg(self.keys.pattern()).arg("COUNT").arg(count.max(1));
        let reply = self.send_to(node.as_ref(), scan).await?;
        let (position, stored): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|error| unexpected(&Value::SimpleString(error.to_string())))?;
        let found: Vec<_> = stored.into_iter().filter_map(|at| Some((self.keys.decode(&at)?, at))).collect();
        let mut keys = Vec::new();
        for part in found.chunks(BATCH) {
            let sizes = self.sizes(node.as_ref(), part).await;
            for (i, (key, stored)) in part.iter().enumerate() {
                let size = match sizes.get(i) {
                    Some(Value::Int(size)) => Ok(*size),
                    // It may have moved to another node, or the batch was lost: asked for by itself.
                    _ => self.size(stored).await,
                };
                let members = match size {
                    Ok(members) => u64::try_from(members).unwrap_or(0),
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        keys.push(LiveKey { key: key.clone(), members: 0 });
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                // It may have gone meanwhile.
                if members > 0 {
                    keys.push(LiveKey { key: key.clone(), members });
                }
            }
        }
        cursor.position = position;
        if position == 0 {
            cursor.nodes.pop();
        }
        Ok(Page { keys, next: (!cursor.nodes.is_empty()).then_some(cursor) })
    }

    /// What one node answers to the question for the sizes of sorted sets; nothing if it does not in time.
    async fn sizes(&self, node: Option<&(String, u16)>, found: &[(StoredKey, Vec<u8>)]) -> Vec<Value> {
        let mut pipeline = Pipeline::with_capacity(found.len());
        for (_, stored) in found {
            pipeline.add_command(zcard(stored));
        }
        let (count, patience) = (found.len(), self.patience.response_timeout);
        let answers = match &self.connection.0 {
            Kind::Single(manager) => timeout(patience, manager.clone().req_packed_commands(&pipeline, 0, count)).await,
            #[cfg(feature = "cluster")]
            Kind::Cluster(cluster) => {
                let mut node = crate::cluster::Node::new(cluster.clone(), node);
                timeout(patience, node.req_packed_commands(&pipeline, 0, count)).await
            }
        };
        #[cfg(not(feature = "cluster"))]
        let _ = node;
        answers.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn size(&self, stored: &[u8]) -> Result<i64, Error> {
        integer(&self.run(stored, stored, |_: Attempt| zcard(stored)).await?.value)
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
                self.patience.run(&node, |_| cmd.clone()).await
            }
            _ => self.patience.run::<Connection>(&self.connection, |_| cmd.clone()).await,
        }
        .map(|answer| answer.value)
        .map_err(|failure: Failure| failure.into_error(b"", b""))
    }
}
