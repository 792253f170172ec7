//! The store.

use std::fmt;

use limiter_core::{At, Counting, EntryId, Error, ErrorKind, Facts, Mode, Op, Settlement, WindowStore};
use redis::Cmd;
use redis::aio::ConnectionLike;

use crate::attempt::{Answer, Attempt, Patience};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::id::{IdSource, keep};
use crate::key::{KeySpace, shown};
use crate::script::{APPLY, Arg, SETTLE};
use crate::{RedisStoreBuilder, reply};

/// Keeps logs in Redis, one sorted set each, and decides in one round trip.
///
/// It is shared by reference or in an `Arc`, and sends the operations of all tasks over one multiplexed connection.
///
/// # Cancel safety
/// A dropped future may or may not have had its effect, never a part of it.
pub struct RedisStore<C = Connection> {
    pub(crate) connection: C,
    pub(crate) keys: KeySpace,
    pub(crate) patience: Patience,
    ids: IdSource,
}

impl RedisStore {
    /// Connects with the default configuration to a URL, which [`RedisStoreBuilder::connect`] describes.
    ///
    /// # Errors
    /// As [`RedisStoreBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// The default configuration, to be changed.
    #[must_use]
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }
}

impl<C> RedisStore<C> {
    pub(crate) fn new(connection: C, keys: KeySpace, patience: Patience) -> Self {
        Self { connection, keys, patience, ids: IdSource::new() }
    }

    /// The key in Redis under which the log of `key` is.
    #[must_use]
    pub fn redis_key(&self, key: impl AsRef<[u8]>) -> Vec<u8> {
        self.keys.encode(key.as_ref())
    }
}

impl<C> fmt::Debug for RedisStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("keys", &self.keys).field("patience", &self.patience).finish_non_exhaustive()
    }
}

fn given(at: At) -> Option<u64> {
    match at {
        At::StoreClock => None,
        At::Given(at) => Some(at.as_micros()),
    }
}

/// The request of an operation, as `apply.lua` reads it.
fn request(op: &Op<'_>, id: &[u8]) -> Vec<u8> {
    let kind = match (op.mode, op.policy.counts()) {
        (Mode::Acquire, Counting::Admitted) => 1,
        (Mode::Acquire, Counting::Attempts) => 2,
        (Mode::Record, _) => 3,
        (Mode::Peek, _) => 4,
    };
    let limits = op.policy.limits();
    let mut request = Vec::with_capacity(8 + id.len() + 14 * limits.len());
    request.push(kind);
    request.extend_from_slice(&seven(op.cost));
    request.extend_from_slice(id);
    for limit in limits.iter() {
        request.extend_from_slice(&seven(limit.window().as_micros()));
        request.extend_from_slice(&seven(limit.max()));
    }
    request
}

/// The low seven bytes of a number below 2^56.
fn seven(number: u64) -> [u8; 7] {
    let [_, bytes @ ..] = number.to_be_bytes();
    bytes
}

fn apply_command(request: &[u8], at: Option<u64>, stored: &[u8], attempt: Attempt) -> Cmd {
    let at = at.map_or(Arg::Bytes(b""), Arg::Number);
    match attempt.since_first {
        Some(since) => {
            let since = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            APPLY.call(attempt.bring, stored, &[Arg::Bytes(request), at, Arg::Number(since)])
        }
        None if matches!(at, Arg::Number(_)) => APPLY.call(attempt.bring, stored, &[Arg::Bytes(request), at]),
        None => APPLY.call(attempt.bring, stored, &[Arg::Bytes(request)]),
    }
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub(crate) async fn run(
        &self,
        key: &[u8],
        stored: &[u8],
        command: impl Fn(Attempt) -> Cmd,
    ) -> Result<Answer, Error> {
        let answer = self.patience.run(&self.connection, command).await;
        answer.map_err(|failure: Failure| failure.into_error(key, stored))
    }
}

impl<C> WindowStore for RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let stored = self.keys.encode(op.key);
        let own = self.ids.next(match op.at {
            At::StoreClock => keep(op.policy.longest_window()),
            At::Given(_) => 0,
        });
        let (id, bytes) = match op.id {
            Some(id) => (id, &id.as_u128().to_be_bytes()[..]),
            None => (EntryId::from_u128(own.into()), &own.to_be_bytes()[2..]),
        };
        let (request, at) = (request(&op, bytes), given(op.at));
        let answer = self.run(op.key, &stored, |attempt| apply_command(&request, at, &stored, attempt)).await?;
        reply::facts(&op, id, &answer.value)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<bool, Error> {
        let stored = self.keys.encode(settlement.key);
        let receipt = settlement.receipt;
        let numbers = [receipt.at().as_micros(), receipt.window().as_micros(), settlement.cost].map(seven);
        let request = [&receipt.entry().as_u128().to_be_bytes()[..], numbers.as_flattened()].concat();
        let args = [Arg::Bytes(&request), Arg::Number(given(settlement.at).unwrap_or_default())];
        let args = &args[..1 + usize::from(given(settlement.at).is_some())];
        let answer = self.run(settlement.key, &stored, |attempt| SETTLE.call(attempt.bring, &stored, args)).await?;
        let done = reply::integer(&answer.value)? == 1;
        if !done && answer.repeated && settlement.cost == 0 {
            let text = format!(
                "the entry of key {} is gone, perhaps by a refund whose answer was lost",
                shown(settlement.key)
            );
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        Ok(done)
    }

    async fn reset(&self, key: &[u8]) -> Result<bool, Error> {
        let stored = self.keys.encode(key);
        let unlink = |_| {
            let mut cmd = redis::cmd("UNLINK");
            cmd.arg(&stored);
            cmd
        };
        Ok(reply::integer(&self.run(key, &stored, unlink).await?.value)? == 1)
    }
}
