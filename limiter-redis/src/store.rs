//! The store.

use std::fmt;

use limiter_core::{At, Counting, EntryId, Error, ErrorKind, Facts, Mode, Op, Settlement, WindowStore};
use redis::Cmd;
use redis::aio::ConnectionLike;

use crate::attempt::{Answer, Attempt, Patience};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::id::IdSource;
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

/// A number, or nothing.
fn optional<'a>(number: Option<u64>) -> Arg<'a> {
    number.map_or(Arg::Bytes(b""), Arg::Number)
}

fn apply_command(op: &Op<'_>, id: &[u8], stored: &[u8], attempt: Attempt) -> Cmd {
    let kind: &[u8] = match (op.mode, op.policy.counts()) {
        (Mode::Acquire, Counting::Admitted) => b"a",
        (Mode::Acquire, Counting::Attempts) => b"t",
        (Mode::Record, _) => b"r",
        (Mode::Peek, _) => b"p",
    };
    let again = attempt.since_first.map(|since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
    let mut args = [Arg::Number(0); 5 + 2 * limiter_core::MAX_LIMITS];
    args[..5].copy_from_slice(&[
        Arg::Bytes(kind),
        Arg::Number(op.cost),
        Arg::Bytes(id),
        optional(given(op.at)),
        optional(again),
    ]);
    let limits = op.policy.limits();
    for (pair, limit) in args[5..].chunks_exact_mut(2).zip(limits.iter()) {
        pair.copy_from_slice(&[Arg::Number(limit.window().as_micros()), Arg::Number(limit.max())]);
    }
    APPLY.call(attempt.bring, stored, &args[..5 + 2 * limits.len()])
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
        let own = self.ids.next();
        let (id, bytes) = match op.id {
            Some(id) => (id, &id.as_u128().to_be_bytes()[..]),
            None => (EntryId::from_u128(own.into()), &own.to_be_bytes()[..]),
        };
        let answer = self.run(op.key, &stored, |attempt| apply_command(&op, bytes, &stored, attempt)).await?;
        reply::facts(&op, id, &answer.value)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<bool, Error> {
        let stored = self.keys.encode(settlement.key);
        let receipt = settlement.receipt;
        let id = receipt.entry().as_u128().to_be_bytes();
        let args = [
            Arg::Bytes(&id),
            Arg::Number(receipt.at().as_micros()),
            Arg::Number(receipt.window().as_micros()),
            Arg::Number(settlement.cost),
            optional(given(settlement.at)),
        ];
        let answer = self.run(settlement.key, &stored, |attempt| SETTLE.call(attempt.bring, &stored, &args)).await?;
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
