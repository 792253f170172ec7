//! The store over a table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::{
    Facts, JointFacts, JointOp, Log, LogInfo, LogKey, Op, Settlement, SettlementFacts,
};
use limiter_core::{Error, Timestamp, WindowStore};

use crate::batch::read;
use crate::call::{Failed, Held, OwnedOp, Pending, appended, apply_all};
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
/// combined with it are neither lost nor applied twice.
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

    async fn call<R: Send + 'static>(
        &self,
        logs: &[LogKey<'_>],
        work: impl Fn(&mut [Held], Timestamp) -> Result<(R, Vec<bool>), Failed> + Send + 'static,
    ) -> Result<R, Error> {
        let keys = logs.iter().map(|log| stored_key(*log)).collect();
        let (call, result) = Pending::new(keys, work);
        let ticket = self.queue.join(Box::new(call));
        let _ticket = ticket.map_err(|error| Failed::from(&error).into_error(logs))?;
        let result = result.await;
        result
            .unwrap_or_else(|_| Err(Failed::abandoned()))
            .map_err(|failed| failed.into_error(logs))
    }
}

/// Returns the log of a call on one log.
fn only(held: &mut [Held]) -> Result<&mut Log, Failed> {
    match held {
        [Ok(log)] => Ok(log),
        [Err(text)] => Err(Failed::damaged(0, text)),
        _ => Err(Failed::damaged(0, "expected one log")),
    }
}

#[async_trait]
impl<T: Table> WindowStore for LogStore<T> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let owned = OwnedOp::from(JointOp::from(op));
        let work = move |held: &mut [Held], now| {
            let facts = only(held)?.apply(&owned.op(), now);
            let changed = appended(&facts);
            Ok((facts, vec![changed]))
        };
        self.call(&[op.log], work).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let log = settlement.log;
        let policy = settlement.policy.clone();
        let limiter_policy = settlement.limiter_policy.cloned();
        let Settlement {
            receipt,
            change,
            at,
            ..
        } = settlement;
        let work = move |held: &mut [Held], now| {
            let mut owned = Settlement::renewal(LogKey::new(log.name, ""), &policy, receipt);
            (owned.change, owned.at) = (change, at);
            owned.limiter_policy = limiter_policy.as_ref();
            let facts = only(held)?.settle(&owned, now);
            let changed = facts.applied();
            Ok((facts, vec![changed]))
        };
        self.call(&[log], work).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let work = |held: &mut [Held], _| {
            let removed = held
                .iter()
                .any(|held| !held.as_ref().is_ok_and(Log::is_empty));
            held.fill_with(|| Ok(Log::new()));
            Ok((removed, vec![removed]))
        };
        self.call(&[log], work).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        if !self.table().takes_several() {
            return Ok(None);
        }
        let logs: Vec<LogKey<'_>> = ops.iter().map(|joint| joint.op.log).collect();
        let owned: Vec<OwnedOp> = ops.iter().map(|joint| OwnedOp::from(*joint)).collect();
        let work = move |held: &mut [Held], now| apply_all(&owned, held, now);
        let facts = self.call(&logs, work).await?;
        let facts = facts.into_iter();
        Ok(Some(
            facts
                .map(|facts| facts.map_err(|failed| failed.into_error(&logs)))
                .collect(),
        ))
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
