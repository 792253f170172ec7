//! The store over a table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::{
    Facts, JointFacts, JointOp, LogInfo, LogKey, Op, Settlement, SettlementFacts,
};
use limiter_core::{Error, WindowStore};

use crate::batch::read;
use crate::call::{Call, Failed, OwnedSettlement, Reply, Work};
use crate::key::stored_key;
use crate::queue::Queue;
use crate::table::{Loaded, Table, async_trait};

/// A store that loads a log from a [`Table`], applies calls to it, and saves it if it is unchanged.
///
/// Calls that wait for the same log are applied together and saved once. So a busy key costs two requests to the table for all calls
/// that arrive meanwhile. Calls on several logs are combined with each other. A denial or a peek saves nothing.
///
/// # Errors
/// Every operation returns the errors of the table, and
/// - [`Corrupt`](limiter_core::ErrorKind::Corrupt) if the bytes are no log; [`reset`](limiter_core::Limiter::reset) removes them,
/// - [`Unavailable`](limiter_core::ErrorKind::Unavailable) if other processes changed the log during each of 100 attempts.
///
/// # Cancel safety
/// If a future is dropped before it completes, its operation may or may not take effect. Operations of other callers that were
/// combined with it are neither lost nor applied twice. If nobody waits for a request to the table any more, it is dropped as well.
pub struct LogStore<T> {
    queue: Arc<Queue<T>>,
}

impl<T: Table> LogStore<T> {
    /// Returns a store over a table. Stores of other processes over the same table share its logs.
    #[must_use]
    pub fn new(table: T) -> Self {
        let queue = Arc::new(Queue::new(table));
        Self { queue }
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> &T {
        &self.queue.table
    }

    /// Describes a log, for operators. `None` if there is none, or it has expired.
    ///
    /// # Cancel safety
    /// It only reads, so it can be dropped at any time.
    pub async fn inspect(&self, log: LogKey<'_>) -> Result<Option<LogInfo>, Error> {
        let key = stored_key(log);
        let loaded = self.table().load(std::slice::from_ref(&key)).await;
        let Loaded { logs, now } = loaded.map_err(|error| error.with_log(log))?;
        let Some(bytes) = logs.into_iter().next().flatten() else {
            return Ok(None);
        };
        let held = read(Some(&bytes));
        let held = held.map_err(|text| Failed::damaged(0, &text).into_error(&[log]))?;
        let parts = (held.oldest(), held.newest(), held.expires_at());
        let (Some(oldest), Some(newest), Some(expires_at)) = parts else {
            return Ok(None);
        };
        let left = expires_at.as_micros().checked_sub(now.as_micros());
        Ok(left.filter(|left| *left > 0).map(|left| LogInfo {
            entries: held.len() as u64,
            cost: held.cost(),
            oldest,
            newest,
            expires_in: Some(Duration::from_micros(left)),
            bytes: (key.len() + bytes.len()) as u64,
        }))
    }

    async fn call<R>(
        &self,
        logs: &[LogKey<'_>],
        work: impl FnOnce(Reply<R>) -> Work,
    ) -> Result<R, Error> {
        let keys = logs.iter().map(|log| stored_key(*log)).collect();
        let (reply, result) = Reply::new();
        let work = work(reply);
        let ticket = self.queue.join(Call { keys, work });
        let _ticket = ticket.map_err(|error| Failed::from(&error).into_error(logs))?;
        let result = result.await;
        result
            .unwrap_or_else(|_| Err(Failed::abandoned()))
            .map_err(|failed| failed.into_error(logs))
    }

    async fn apply_as_one(&self, ops: &[JointOp<'_>]) -> Result<JointFacts, Error> {
        let logs: Vec<LogKey<'_>> = ops.iter().map(|joint| joint.op.log).collect();
        let owned = ops.iter().map(Into::into).collect();
        let facts = self.call(&logs, |reply| Work::Apply(owned, reply)).await?;
        let facts = facts.into_iter();
        let facts = facts.map(|facts| facts.map_err(|failed| failed.into_error(&logs)));
        Ok(facts.collect())
    }
}

#[async_trait]
impl<T: Table> WindowStore for LogStore<T> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let mut facts = self.apply_as_one(&[op.into()]).await?;
        let none = || Err(Failed::damaged(0, "no facts").into_error(&[op.log]));
        facts.pop().unwrap_or_else(none)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let owned = OwnedSettlement::from(&settlement);
        let work = |reply| Work::Settle(Box::new(owned), reply);
        self.call(&[settlement.log], work).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.call(&[log], Work::Reset).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        match self.table().takes_several() {
            true => self.apply_as_one(ops).await.map(Some),
            false => Ok(None),
        }
    }

    fn identity(&self) -> Option<usize> {
        self.table()
            .takes_several()
            .then(|| std::ptr::from_ref(self).addr())
    }
}

impl<T: fmt::Debug> fmt::Debug for LogStore<T> {
    /// Takes no lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore")
            .field("table", &self.queue.table)
            .finish_non_exhaustive()
    }
}
