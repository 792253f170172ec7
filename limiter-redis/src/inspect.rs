//! Looking at one log, for operators.

use std::time::Duration;

use limiter_core::store::LogKey;
use limiter_core::{Error, Timestamp};

use crate::reply;
use crate::script::INSPECT;
use crate::store::RedisStore;

/// Describes a log as Redis holds it, including expired entries that no append has removed yet.
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
    /// The key's time to live. `None` if it has none, which means that another program changed the key.
    pub expires_in: Option<Duration>,
    /// The memory of the key by `MEMORY USAGE`, in bytes.
    pub bytes: u64,
}

impl RedisStore {
    /// Returns Redis' data on a log. `None` if there is none.
    ///
    /// # Errors
    /// The errors of every operation: see [`RedisStore`].
    ///
    /// # Cancel safety
    /// It only reads, so it can be dropped at any time.
    pub async fn inspect(&self, log: LogKey<'_>) -> Result<Option<LogInfo>, Error> {
        let stored = self.keys.encode(log);
        let reply = self
            .run(log, &stored, true, |attempt| {
                INSPECT.call(attempt.load, &[&stored], &[])
            })
            .await?;
        type Numbers = (u64, u64, u64, u64, i64, u64);
        let numbers: Option<Numbers> =
            reply::value(&reply.value).map_err(|error| error.with_log(log))?;
        Ok(numbers.map(
            |(entries, cost, oldest, newest, expires_in, bytes)| LogInfo {
                entries,
                cost,
                oldest: Timestamp::from_micros_saturating(oldest),
                newest: Timestamp::from_micros_saturating(newest),
                expires_in: u64::try_from(expires_in).ok().map(Duration::from_millis),
                bytes,
            },
        ))
    }
}
