//! The store.

use std::fmt;

use async_trait::async_trait;
use limiter_core::store::{At, Facts, LogKey, LogPlace, Op, Settlement, SettlementFacts};
use limiter_core::{EntryId, Error, ErrorKind, WindowStore};
use redis::Cmd;

use crate::attempt::{Attempt, Reply};
use crate::channel::{Channel, EncodedOp};
use crate::format::{OWN_ID_LEN, ttl_code};
use crate::id::IdSource;
use crate::key::KeySpace;
use crate::request::given_time;
use crate::script::{Arg, SETTLE};
use crate::{reply, request};

/// Keeps each log in a sorted set in Redis and decides in one round trip.
///
/// The operations of all tasks share one multiplexed connection. Share the store by reference or in an `Arc`.
/// [`Debug`](fmt::Debug) takes no lock.
///
/// # Errors
/// Every operation returns
/// - [`Unavailable`](ErrorKind::Unavailable) if the server cannot be reached or refuses to serve,
/// - [`Timeout`](ErrorKind::Timeout) if no attempt was answered in time,
/// - [`Corrupt`](ErrorKind::Corrupt) if the Redis key holds something other than a log,
/// - [`Configuration`](ErrorKind::Configuration) if the server refuses the user or the command,
/// - [`Inconsistent`](ErrorKind::Inconsistent) if the reply has an unexpected form.
///
/// # Abandoned operations
/// When a stopped server continues, it executes the requests that it received. An operation therefore has a deadline by the
/// server's clock, after which it appends nothing: the end of the [response timeout](crate::RedisStoreBuilder::response_timeout) or of
/// the operation's [timeout](Op::timeout), whichever is earlier. Settlements, operations at a given time, and those before the first reply have no deadline.
///
/// # Cancel safety
/// If a future is dropped before it completes, the operation takes effect completely or not at all.
pub struct RedisStore {
    pub(crate) channel: Channel,
    pub(crate) keys: KeySpace,
    ids: IdSource,
}

impl RedisStore {
    pub(crate) fn new(channel: Channel, keys: KeySpace) -> Self {
        Self { channel, keys, ids: IdSource::new() }
    }

    /// Returns the Redis key of a log, such as `limiter:{search:customer 7}`.
    ///
    /// # Examples
    /// ```
    /// # use limiter_core::Name;
    /// # use limiter_core::store::LogKey;
    /// # async fn example(store: limiter_redis::RedisStore) {
    /// let log = LogKey::new(Name::new("search"), "customer 7");
    /// assert_eq!(store.redis_key(log), b"limiter:{search:customer 7}");
    /// # }
    /// ```
    #[must_use]
    pub fn redis_key(&self, log: LogKey<'_>) -> Vec<u8> {
        self.keys.encode(log)
    }

    /// Sends a command about a log, which is stored under `stored`.
    pub(crate) async fn run(
        &self,
        log: LogKey<'_>,
        stored: &[u8],
        command: impl FnMut(Attempt) -> Cmd,
    ) -> Result<Reply, Error> {
        let reply = self.channel.run(command).await;
        reply.map_err(|failure| failure.into_error(stored).with_log(log))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RedisStore");
        out.field("keys", &self.keys).field("retry_policy", &self.channel.retry_policy).finish_non_exhaustive()
    }
}

#[async_trait]
impl WindowStore for RedisStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let own = self.ids.next(match op.at {
            At::StoreClock => ttl_code(op.retention().window),
            At::Given(_) => 0,
        });
        let (id, bytes) = match op.id {
            Some(id) => (id, &id.as_u128().to_be_bytes()[..]),
            None => (EntryId::from_u128(own.into()), &own.to_be_bytes()[8 - OWN_ID_LEN..]),
        };
        let stored = self.keys.encode(op.log);
        let (request, windows) = (request::apply(&op, bytes), request::windows(&op));
        let mut encoded = EncodedOp { stored: &stored, request, at: given_time(op.at), windows, timeout: op.timeout };
        let reply = self.channel.apply(&mut encoded).await;
        let reply = reply.map_err(|failure| failure.into_error(&stored).with_log(op.log))?;
        reply::facts(&op, id, &reply).ok_or_else(|| reply::unexpected(&reply).with_log(op.log))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let (log, stored) = (settlement.log, self.keys.encode(settlement.log));
        let (request, at) = (request::settle(&settlement), given_time(settlement.at));
        let args = [Arg::Bytes(&request), at.into()];
        let reply = self.run(log, &stored, |attempt| SETTLE.call(attempt.load, &stored, &args)).await?;
        let facts = reply::settlement(&settlement, &reply.value);
        let facts = facts.ok_or_else(|| reply::unexpected(&reply.value).with_log(log))?;
        if !facts.applied && reply.repeated && settlement.cost == 0 {
            let text = "the entry is gone, perhaps by an earlier attempt of this refund whose answer was lost";
            return Err(Error::new(ErrorKind::Timeout, text).with_log(log));
        }
        Ok(facts)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let stored = self.keys.encode(log);
        let mut unlink = redis::cmd("UNLINK");
        // A repetition could remove what others have charged since the first attempt.
        let reply = self.channel.run_once(unlink.arg(&stored)).await;
        let reply = reply.map_err(|failure| failure.into_error(&stored));
        let removed = reply.and_then(|reply| reply::integer(&reply)).map_err(|error| error.with_log(log))?;
        Ok(removed == 1)
    }

    /// In a Cluster, the node is the master that serves the log's slot: its host and port.
    fn place(&self, log: LogKey<'_>) -> LogPlace {
        LogPlace::on(self.channel.connection.node_of(&self.keys.encode(log)))
    }
}
