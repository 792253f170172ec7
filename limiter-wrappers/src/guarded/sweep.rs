//! The task that sends carried charges.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use limiter_core::store::{LogKey, Op};
use limiter_core::{Error, Policy, Timestamp, WindowStore, policy};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::carried::LogId;
use super::local::Local;
use super::{Inner, only};

const LOGS_AT_A_TIME: usize = 64;
/// How long a node rests after an error, and how soon the sweep looks at others.
const PAUSE: Duration = Duration::from_millis(100);
/// A peek with it reads the primary store's clock, past the denials.
static CLOCK: Policy = policy!("1/1us");

impl<S: WindowStore> Inner<S> {
    /// Starts the task if something waits, no task runs, and the caller is in a runtime.
    pub(super) fn start_sweep(self: &Arc<Self>) {
        let Some(local) = self.stand_in.local().filter(|local| local.waiting() > 0) else {
            return;
        };
        local.locked(|carried| {
            // A runtime that ended has dropped its task.
            if carried.sweep.as_ref().is_none_or(JoinHandle::is_finished)
                && let Ok(runtime) = Handle::try_current()
            {
                carried.sweep = Some(runtime.spawn(Arc::clone(self).sweep()));
            }
        });
    }

    /// Sends until nothing waits.
    async fn sweep(self: Arc<Self>) {
        let Some(local) = self.stand_in.local() else {
            return;
        };
        let mut next = 0;
        // The cells go with the last clone.
        while Arc::strong_count(&self) > 1 {
            let Some(logs) = local.locked(|carried| carried.some_from(next)) else {
                return;
            };
            next = logs.last().map_or(0, |(last, _)| last + 1);
            // Where the numbers begin again, no node fails.
            let is_end = logs.is_empty();
            let sends = stream::iter(logs).map(|(number, log)| self.send(local, number, log));
            let sends = sends.buffer_unordered(LOGS_AT_A_TIME);
            if !sends.fold(is_end, |any, sent| ready(any | sent)).await {
                sleep(PAUSE).await;
            }
        }
    }

    /// Sends the cells of a log. Returns `false` if its node fails.
    async fn send(&self, local: &Local, number: u64, (name, key): LogId) -> bool {
        let log = LogKey { name, key: &key };
        let node = self.store.node(log);
        let paused = local.locked(|carried| carried.paused.get(&node).copied());
        if paused.is_some_and(|until| until > Instant::now()) {
            return false;
        }
        loop {
            match self.send_oldest(local, number, log).await {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => {
                    local.locked(|carried| carried.paused.insert(node, Instant::now() + PAUSE));
                    return false;
                }
            }
        }
    }

    /// Sends the oldest cell of a log, if there is one. Returns `false` if there is none.
    async fn send_oldest(
        &self,
        local: &Local,
        number: u64,
        log: LogKey<'_>,
    ) -> Result<bool, Error> {
        // Before the primary store's clock is read: an entry may count for longer than it should, but not shorter.
        let clock = local.store.read_clock();
        let Some(cell) = local.locked(|carried| carried.oldest(number, clock)) else {
            return Ok(false);
        };
        let mut peek = Op::peek(log.key, &CLOCK).with_name(log.name);
        if cell.is_given {
            peek = peek.at(cell.newest);
        }
        let now = only(self.decide(&[peek.into()]).await?)?.log.now;
        let age = clock.micros_since(cell.newest);
        let at = match cell.is_given {
            true => cell.newest,
            false => Timestamp::from_micros_saturating(now.as_micros().saturating_sub(age)),
        };
        let frozen = local.locked(|carried| carried.freeze(number, cell, at, now));
        if let Some((id, cost, policy)) = frozen {
            let record = Op::record(log.key, &policy).with_name(log.name);
            let record = record.with_cost(cost).with_id(id).at(at);
            only(self.decide(&[record.into()]).await?)?;
            local.locked(|carried| carried.confirm(number, id));
        }
        Ok(true)
    }
}
