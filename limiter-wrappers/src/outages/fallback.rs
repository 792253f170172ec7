//! Limiting locally while a store is down.

mod carried;
mod sweep;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{
    At, Facts, LogFacts, LogKey, LogPlace, Op, Otherwise, Outcome, Settlement, SettlementFacts, attempt, decide,
};
use limiter_core::{Decision, Error, Policy, SyncStore, Timer, WindowStore, policy};
use tokio::time::{Instant, sleep};

use self::sweep::Sweep;
use super::outage::{Outage, later};

/// Limits in a local store while the primary one is down, and carries over afterwards what that store has charged.
///
/// Each call goes to the primary store first, and whatever it returns is returned. If it fails with
/// [`Unavailable`](limiter_core::ErrorKind::Unavailable) or [`Timeout`](limiter_core::ErrorKind::Timeout), `local` decides.
///
/// ```text
///                    response
///   call ─► primary ─────────────► caller
///              │ fails                ▲
///              ▼                      │
///            local ──── decision ─────┘
///              │ appended
///              ▼
///            cells ───── sweep ─────► primary
/// ```
///
/// # What is carried over
/// For each log, the cost of its local entries, by cells of a 32nd of its longest window. Once the primary store responds, a sweep
/// sends one record per cell, at most 64 logs at a time. No call waits for it. It runs on the tokio runtime of whoever calls, which
/// needs timers. If that runtime ends, the next call starts the sweep again.
///
/// - A cell has the age of its newest entry, by the process's monotonic clock. It never lies in the primary store's future.
///   Operations with a caller's time keep that time.
/// - A cell is repeated with the same id until the primary store confirms it or it no longer counts, so a lost answer counts once.
/// - The record keeps what any limit of the log's operations counts. Cells that no limit can tell apart are dropped, so attempts
///   push out nothing.
///
/// # What an outage costs
#[doc = include_str!("fallback/costs.md")]
///
/// # Settlements and resets
/// A settlement or refund asks the local log first, and goes to the primary store if that log does not hold the entry. A reset
/// clears the local log and its cells, and returns what the primary store responds.
///
/// # Memory
/// At most 100,000 logs are carried, which take up to about 130 MB and the keys. [`dropped`](Self::dropped) counts the logs beyond
/// that. The local store has its own bound. An operation that appends nothing takes no memory.
///
/// # Cancel safety
/// As the primary store's. A dropped reset has cleared the local log. The sweep belongs to no call. It ends with the last clone;
/// call [`flush`](Self::flush) first.
pub struct Fallback<P, L>(Arc<Shared<P, L>>);

struct Shared<P, L> {
    sweep: Arc<Sweep<P>>,
    local: L,
    fallback_decisions: AtomicU64,
}

/// Counts everything that a log holds.
static TOTAL: Policy = policy!("4503599627370496/104249d");

impl<P, L> Fallback<P, L> {
    /// Returns `primary`, with `local` in its place while it is down.
    #[must_use]
    pub fn new(primary: P, local: L) -> Self {
        let (sweep, fallback_decisions) = (Arc::new(Sweep::new(primary)), AtomicU64::new(0));
        Self(Arc::new(Shared { sweep, local, fallback_decisions }))
    }

    /// Adds a listener, which is called once when an outage begins and once when it ends. Default: none.
    ///
    /// An outage begins with the first call that fails. It is over when the primary store has answered everything for a second.
    /// The listener is called within the call, or the sweep, that notices it.
    #[must_use]
    pub fn on_outage(self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.0.sweep.outages.listen(listener);
        self
    }

    /// Returns the primary store.
    pub fn primary(&self) -> &P {
        &self.0.sweep.primary
    }

    /// Whether an outage has begun and is not over.
    #[must_use]
    pub fn in_outage(&self) -> bool {
        self.0.sweep.outages.in_outage()
    }

    /// Returns the nodes of the primary store that have failed since the start, and whether an outage of each is not over.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.0.sweep.outages.nodes()
    }

    /// Returns how many calls the local store has decided.
    #[must_use]
    pub fn fallback_decisions(&self) -> u64 {
        self.0.fallback_decisions.load(Ordering::Relaxed)
    }

    /// Returns how many logs wait to be carried over.
    #[must_use]
    pub fn carried_logs(&self) -> usize {
        self.0.sweep.waiting()
    }

    /// Returns how many logs were never carried over because there were more than 100,000.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.sweep.locked(|carried| carried.dropped())
    }
}

impl<P: WindowStore, L> Fallback<P, L> {
    /// Waits until everything is carried over, but no longer than `timeout`. Returns how many logs are left.
    ///
    /// Call it at shutdown, after the last request.
    ///
    /// # Cancel safety
    /// Nothing is lost: the sweep goes on.
    pub async fn flush(&self, timeout: Duration) -> usize {
        let deadline = later(timeout);
        loop {
            self.0.sweep.start();
            let left = self.carried_logs();
            let time_left = deadline.saturating_duration_since(Instant::now());
            if left == 0 || time_left.is_zero() {
                return left;
            }
            sleep(time_left.min(Duration::from_millis(5))).await;
        }
    }
}

impl<P: WindowStore, L: SyncStore> Fallback<P, L> {
    fn decide_locally(&self, op: &Op<'_>) -> Facts {
        let Shared { sweep, local, fallback_decisions } = &*self.0;
        fallback_decisions.fetch_add(1, Ordering::Relaxed);
        let facts = sweep.locked(|carried| {
            let facts = local.apply_now(op);
            if let Outcome::Appended(entry) = facts.outcome {
                carried.add(op, entry);
            }
            facts
        });
        sweep.start();
        facts
    }

    /// Settles an entry that the local log holds.
    fn settle_locally(&self, settlement: &Settlement<'_>) -> Option<SettlementFacts> {
        // Most entries are the primary store's: they take no lock.
        self.local_log(settlement.log, settlement.at).newest?;
        let settled = self.0.sweep.locked(|carried| {
            let total = || self.local_log(settlement.log, settlement.at).usage.first().map_or(0, |usage| usage.used);
            let before = total();
            let facts = self.0.local.settle_now(settlement);
            if facts.applied {
                carried.settle(settlement, (before, total()), &facts.log);
            }
            facts
        });
        self.0.sweep.start();
        settled.applied.then_some(settled)
    }

    fn local_log(&self, log: LogKey<'_>, at: At) -> LogFacts {
        let mut peek = Op::peek(log.key, &TOTAL).with_name(log.name);
        peek.at = at;
        self.0.local.apply_now(&peek).log
    }
}

#[async_trait]
impl<P: WindowStore, L: SyncStore> WindowStore for Fallback<P, L> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let sweep = &self.0.sweep;
        let answer = sweep.primary.apply(op).await;
        sweep.outages.note(&answer, || self.place(op.log).node);
        if answer.as_ref().is_err_and(Error::is_retryable) {
            return Ok(self.decide_locally(&op));
        }
        sweep.start();
        answer
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        if let Some(facts) = self.settle_locally(&settlement) {
            return Ok(facts);
        }
        let answer = self.0.sweep.primary.settle(settlement).await;
        self.0.sweep.outages.note_change(&answer, || self.place(settlement.log).node);
        answer
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let Shared { sweep, local, .. } = &*self.0;
        sweep.locked(|carried| {
            carried.remove(log);
            local.reset_now(log);
        });
        let answer = sweep.primary.reset(log).await;
        sweep.outages.note_change(&answer, || self.place(log).node);
        answer
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let sweep = &self.0.sweep;
        match attempt(&sweep.primary, op) {
            None => otherwise(),
            Some(Err(error)) if error.is_retryable() => {
                sweep.outages.failed(&error, &self.place(op.log).node, 1);
                Poll::Ready(op.checked().map(|op| decide(&op, self.decide_locally(&op))))
            }
            Some(answer) => {
                sweep.outages.note_decision(&answer, || self.place(op.log).node);
                sweep.start();
                Poll::Ready(answer)
            }
        }
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.primary().timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.primary().place(log)
    }
}

impl<P, L> Clone for Fallback<P, L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<P, L> {
    /// Prints no keys, and locks nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Fallback");
        out.field("primary", self.primary()).field("local", &self.0.local).field("in_outage", &self.in_outage());
        out.finish_non_exhaustive()
    }
}
