//! Looking at one log, for operators.

use std::time::Duration;

use limiter_core::store::LogKey;
use limiter_core::{Error, Timestamp};
use redis::Value;

use crate::reply::{integer, unexpected};
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
    /// Returns Redis' data on a log; `None` if there is none.
    ///
    /// # Errors
    /// The errors of every operation: see [`RedisStore`].
    ///
    /// # Cancel safety
    /// It changes nothing, so it can be dropped at any time.
    pub async fn inspect(&self, log: LogKey<'_>) -> Result<Option<LogInfo>, Error> {
        let stored = self.keys.encode(log);
        let reply = self.run(log, &stored, |attempt| INSPECT.call(attempt.load, &[&stored], &[])).await?.value;
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
