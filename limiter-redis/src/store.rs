//! The store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use limiter_core::store::{
    At, Change, EntryId, Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts,
};
use limiter_core::{Error, ErrorKind, WindowStore};
use redis::{Cmd, Value};

use crate::attempt::{Attempt, Reply};
use crate::channel::{Channel, EncodedOp};
use crate::format::{ADVISORY, KEPT, OWN_ID_LEN, ttl_code};
use crate::id::IdSource;
use crate::key::KeySpace;
use crate::request::given_time;
use crate::script::{RENEW, SETTLE};
use crate::{reply, request};

/// Keeps each log in a sorted set in Redis and decides in one round trip.
///
/// The operations of all tasks share one multiplexed connection. Share the store by reference or in an `Arc`.
/// [`Debug`](fmt::Debug) takes no lock.
///
/// # Errors
/// Every operation returns
/// - [`Unavailable`](ErrorKind::Unavailable) if the server cannot be reached or refuses to serve,
/// - [`Timeout`](ErrorKind::Timeout) if no attempt got a reply in time,
/// - [`Corrupt`](ErrorKind::Corrupt) if the Redis key holds something other than a log,
/// - [`Configuration`](ErrorKind::Configuration) if the server refuses the user or the command,
/// - [`Inconsistent`](ErrorKind::Inconsistent) if the reply has an unexpected form.
///
/// # Abandoned operations
/// When a stopped server continues, it executes the requests that it received. An operation therefore has a deadline by the
/// server's clock, after which it does not append: the end of the [response timeout](crate::RedisStoreBuilder::response_timeout) or of
/// the operation's [timeout](limiter_core::store::Hints::timeout), the earlier of both. Settlements, operations at a given time, and those before the first reply have no deadline.
///
/// # Cancel safety
/// If a future is dropped before it completes, the operation takes effect completely or not at all.
pub struct RedisStore {
    pub(crate) channel: Channel,
    pub(crate) keys: KeySpace,
    ids: IdSource,
    /// Whether the server refuses scripts with several keys.
    is_split: AtomicBool,
}

impl RedisStore {
    pub(crate) fn new(channel: Channel, keys: KeySpace, seed: Option<u64>) -> Self {
        Self {
            channel,
            keys,
            ids: IdSource::new(seed),
            is_split: AtomicBool::new(false),
        }
    }

    /// Returns a log's Redis key, such as `limiter:1:{search:customer 7}`.
    ///
    /// # Examples
    /// ```
    /// # use limiter_core::Name;
    /// # use limiter_core::store::LogKey;
    /// # async fn example(store: limiter_redis::RedisStore) {
    /// let log = LogKey::new(Name::new("search"), "customer 7");
    /// assert_eq!(store.redis_key(log), b"limiter:1:{search:customer 7}");
    /// # }
    /// ```
    #[must_use]
    pub fn redis_key(&self, log: LogKey<'_>) -> Vec<u8> {
        self.keys.encode(log)
    }

    /// Returns the servers that delete logs when their memory runs short, each with its `maxmemory-policy`. Deleted logs admit again;
    /// only `noeviction` keeps all.
    ///
    /// A server is its host and port, or behind Sentinel the name of the master. Each new connection reads the policy in the
    /// background, and warns through the crate `tracing` if a server's policy has become one that deletes logs. Not listed are
    /// servers whose user lacks `+info`, servers behind a [`Connection`](crate::Connection) of your own, and changes of the policy
    /// since the store connected.
    #[must_use]
    pub fn evicting(&self) -> Vec<(String, Arc<str>)> {
        self.channel.connection.evicting()
    }

    /// Returns an operation as the scripts read it, and the id of its entry.
    fn encode(&self, op: &Op<'_>) -> (EntryId, EncodedOp) {
        let ttl = ttl_of(op);
        let own = self.ids.next(ttl);
        let (id, bytes) = match op.id {
            Some(id) => (
                id,
                [&ttl.to_be_bytes()[..], &id.as_u128().to_be_bytes()].concat(),
            ),
            None => (
                EntryId::from_u128(own.into()),
                own.to_be_bytes()[8 - OWN_ID_LEN..].to_vec(),
            ),
        };
        let stored = self.keys.encode(op.log);
        let request = request::apply(op, &bytes);
        (
            id,
            EncodedOp {
                stored,
                request,
                at: given_time(op.at),
                timeout: op.hints.timeout,
            },
        )
    }

    /// Sends a command about a log, which is stored under `stored`. See [`RetryPolicy::run`](crate::attempt::RetryPolicy::run).
    pub(crate) async fn run(
        &self,
        log: LogKey<'_>,
        stored: &[u8],
        repeatable: bool,
        command: impl FnMut(Attempt) -> Cmd,
    ) -> Result<Reply, Error> {
        let Channel {
            connection,
            retry_policy,
            ..
        } = &self.channel;
        let reply = retry_policy
            .run(connection, None, repeatable, command)
            .await;
        reply.map_err(|failure| failure.into_error(&[stored]).with_log(log))
    }
}

/// Returns the ttl code of an append, 0 at a given time.
fn ttl_of(op: &Op<'_>) -> u16 {
    match op.at {
        At::StoreClock => ttl_code(op.retention().window),
        At::Given(_) => 0,
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RedisStore");
        out.field("keys", &self.keys)
            .field("retry_policy", &self.channel.retry_policy)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl WindowStore for RedisStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let (id, mut encoded) = self.encode(&op);
        let reply = self
            .channel
            .apply(std::slice::from_mut(&mut encoded), &[])
            .await;
        let reply =
            reply.map_err(|failure| failure.into_error(&[&encoded.stored]).with_log(op.log))?;
        reply::facts(&op, id, &reply).ok_or_else(|| reply::unexpected(&reply).with_log(op.log))
    }

    /// In one script call; a Cluster redirects all of it or nothing. On one server, all logs go together; in a Cluster, those of
    /// one slot.
    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        if ops.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let (ids, mut encoded): (Vec<_>, Vec<_>) =
            ops.iter().map(|joint| self.encode(&joint.op)).unzip();
        let slot = |op: &EncodedOp| self.channel.connection.place_of(&op.stored).1;
        let is_split = self.is_split.load(Ordering::Relaxed);
        if is_split || encoded[1..].iter().any(|op| slot(op) != slot(&encoded[0])) {
            return Ok(None);
        }
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = |joint: &JointOp<'_>| {
            flag(joint.is_advisory, ADVISORY) + flag(joint.keeps_charge, KEPT)
        };
        let reply = self
            .channel
            .apply(&mut encoded, &ops.iter().map(flags).collect::<Vec<_>>())
            .await;
        let stored: Vec<&[u8]> = encoded.iter().map(|op| &*op.stored).collect();
        let reply = match reply {
            Err(failure) if failure.is_split() => {
                let is_one_server = self.channel.connection.place_of(stored[0]).1 == Some(0);
                self.is_split
                    .fetch_or(is_one_server && failure.is_cross_slot(), Ordering::Relaxed);
                return Ok(None);
            }
            reply => reply.map_err(|failure| failure.into_error(&stored))?,
        };
        let failure = |reply: &Value| {
            let (number, failure) = reply::failure(reply)?;
            Some(
                failure
                    .into_error(&stored)
                    .with_log(ops.get(number)?.op.log),
            )
        };
        let replies = match &reply {
            Value::Array(replies) if replies.len() == ops.len() => replies,
            reply => return Err(failure(reply).unwrap_or_else(|| reply::unexpected(reply))),
        };
        let facts = ops
            .iter()
            .zip(ids)
            .zip(replies)
            .map(|((JointOp { op, .. }, id), reply)| {
                let facts = reply::facts(op, id, reply)
                    .ok_or_else(|| reply::unexpected(reply).with_log(op.log));
                failure(reply).map_or(facts, Err)
            });
        Ok(Some(facts.collect()))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let (log, stored) = (settlement.log, self.keys.encode(settlement.log));
        let (script, request) = match settlement.change {
            Change::Cost(cost) => (&SETTLE, request::settle(&settlement, cost)),
            Change::Renew { id } => {
                let ttl = ttl_of(&settlement.to_record(1));
                (&RENEW, request::renew(&settlement, id, ttl))
            }
        };
        let at = given_time(settlement.at);
        let reply = self
            .run(log, &stored, true, |attempt| {
                let since = attempt
                    .since_first
                    .map_or_else(String::new, |since| since.as_micros().to_string());
                let args = [&*request, at.as_bytes(), since.as_bytes()];
                script.call(attempt.load, &[&stored], &args)
            })
            .await?;
        let facts = reply::settlement(&settlement, &reply.value);
        let facts = facts.ok_or_else(|| reply::unexpected(&reply.value).with_log(log))?;
        if !facts.applied() && reply.repeated && settlement.change == Change::Cost(0) {
            let text = "the entry is gone; an earlier attempt of this refund may have removed it";
            return Err(Error::new(ErrorKind::Timeout, text).with_log(log));
        }
        Ok(facts)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let stored = self.keys.encode(log);
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(&stored);
        // A repetition could remove others' charges since the first attempt.
        let reply = self.run(log, &stored, false, |_| unlink.clone()).await?;
        reply::value(&reply.value).map_err(|error| error.with_log(log))
    }

    fn identity(&self) -> Option<usize> {
        Some(std::ptr::from_ref(self).addr())
    }

    /// In a Cluster, the master that serves the log's slot: its host and port.
    fn node(&self, log: LogKey<'_>) -> Option<Arc<str>> {
        self.channel.connection.place_of(&self.keys.encode(log)).0
    }
}
