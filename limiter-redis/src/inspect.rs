//! Looking at one log, for operators.

use std::time::Duration;

use limiter_core::store::{LogInfo, LogKey};
use limiter_core::{Error, Timestamp};

use crate::reply;
use crate::script::INSPECT;
use crate::store::RedisStore;

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
