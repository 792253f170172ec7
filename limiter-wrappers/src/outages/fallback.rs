//! Limiting locally while a store is away.

mod merge;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Entry, Facts, LogKey, Op, Otherwise, Settlement, SettlementFacts, attempt};
use limiter_core::{Decision, Error, NowStore, Receipt, Timer, WindowStore};
use tokio::runtime::Handle;

use self::merge::{Shared, lock};
use super::outage::{Outage, OutageLog};

/// Limits in a local store while the primary one is away, and merges what it admitted into the primary store afterwards.
///
/// An operation that fails with [`Unavailable`](limiter_core::ErrorKind::Unavailable) or
/// [`Timeout`](limiter_core::ErrorKind::Timeout) is decided by `local`, which knows only this process and this outage. So during an
/// outage each process admits up to the limit once more per window. Once the primary store answers again, the entries are
/// recorded there with their times, each once. A log is merged before the next operation on it, and all others in the background.
/// Then the windows are right again, for all processes.
///
/// - The primary store clamps the times of merged entries to its newest entry, so they may count for longer than they should.
/// - An operation that timed out may also have taken effect in the primary store. It then counts twice, unless it has an
///   idempotency key.
/// - The system clocks of processes and store must agree, because a merged entry has the local time. An entry from the future
///   holds up the time of its log.
///
/// A receipt is settled in the store that holds its entry. Settling an entry of the primary store while it is away returns the
/// error. So does a reset.
///
/// # Cancel safety
/// As the primary store's. A merge that is dropped is repeated later, with the same ids.
pub struct Fallback<P, L> {
    shared: Arc<Shared<P, L>>,
    outages: OutageLog,
}

impl<P, L> Fallback<P, L> {
    /// Returns `primary`, with `local` in its place while it is away.
    #[must_use]
    pub fn new(primary: P, local: L) -> Self {
        Self { shared: Arc::new(Shared::new(primary, local)), outages: OutageLog::default() }
    }

    /// Sets how many entries of an outage are kept to be merged. Entries beyond that count locally only. Default: 100,000.
    ///
    /// Call it before the first operation; afterwards it has no effect.
    #[must_use]
    pub fn max_entries(mut self, max_entries: usize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.max_entries = max_entries;
        }
        self
    }

    /// Calls `listener` once when an outage begins and once when it ends, within the call that notices it. Default: none.
    #[must_use]
    pub fn on_outage(mut self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.outages.listen(listener);
        self
    }

    /// Returns the primary store.
    pub fn primary(&self) -> &P {
        &self.shared.primary
    }

    /// Returns the local store.
    pub fn local(&self) -> &L {
        &self.shared.local
    }

    /// Returns the number of entries that wait to be merged.
    #[must_use]
    pub fn unmerged(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }
}

impl<P: WindowStore, L: NowStore> Fallback<P, L> {
    /// Notes that the primary store has answered. The first answer after an outage starts the merge of all logs.
    fn answered(&self) {
        if self.outages.answered()
            && let Ok(runtime) = Handle::try_current()
        {
            let shared = Arc::clone(&self.shared);
            runtime.spawn(async move {
                let receipts_valid = shared.merge_all().await;
                let shared = { Arc::downgrade(&{ shared }) };
                tokio::time::sleep(receipts_valid).await;
                if let Some(shared) = shared.upgrade() {
                    shared.forget_merged();
                }
            });
        }
    }
}

#[async_trait]
impl<P: WindowStore, L: NowStore> WindowStore for Fallback<P, L> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let shared = &*self.shared;
        let answer = match shared.log(op.log) {
            Some(log) => match shared.merge(op.log, &log).await {
                Ok(true) => shared.primary.apply(op).await,
                Ok(false) => return Ok(shared.apply_locally(&op, &mut lock(&log))),
                Err(error) => Err(error),
            },
            None => shared.primary.apply(op).await,
        };
        match answer {
            Err(error) if error.is_retryable() => {
                self.outages.failed(&error);
                let log = shared.log_or_new(op.log);
                let facts = shared.apply_locally(&op, &mut lock(&log));
                Ok(facts)
            }
            answer => {
                self.answered();
                answer
            }
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let shared = &*self.shared;
        let mut settlement = settlement;
        if let Some(log) = shared.log(settlement.log) {
            let mut log = lock(&log);
            let named = |entry: &Entry| entry.id == settlement.receipt.entry() && entry.at == settlement.receipt.at();
            if let Some(index) = log.unmerged.iter().position(|entry| named(&entry.local)) {
                let facts = shared.local.settle_now(&settlement);
                if facts.applied {
                    log.unmerged[index].cost = settlement.cost;
                    log.unmerged[index].settled = true;
                }
                return Ok(facts);
            }
            if let Some((_, merged)) = log.merged.iter().find(|(local, _)| named(local)) {
                settlement.receipt = Receipt::new(merged.id, merged.at, settlement.receipt.window());
            }
        }
        let answer = shared.primary.settle(settlement).await;
        match &answer {
            Err(error) if error.is_retryable() => self.outages.failed(error),
            _ => self.answered(),
        }
        answer
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let reset = self.shared.primary.reset(log).await?;
        let Some(local) = self.shared.log(log) else { return Ok(reset) };
        let mut local = lock(&local);
        let unmerged = std::mem::take(&mut local.unmerged).len();
        self.shared.held.fetch_sub(unmerged, Ordering::Relaxed);
        Ok(self.shared.local.reset_now(log) || unmerged > 0 || reset)
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || {
            if self.shared.log(op.log).is_some() {
                return None;
            }
            // Whatever is decided locally has to be remembered, which `apply` does.
            attempt(&self.shared.primary, op).filter(|decision| !matches!(decision, Err(error) if error.is_retryable()))
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.shared.primary.timer()
    }
}

impl<P, L> Clone for Fallback<P, L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), outages: self.outages.clone() }
    }
}

impl<P: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<P, L> {
    /// Prints no keys, and locks nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { primary, local, held, .. } = &*self.shared;
        let mut out = f.debug_struct("Fallback");
        out.field("primary", primary).field("local", local).field("unmerged", held).finish_non_exhaustive()
    }
}
