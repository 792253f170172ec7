//! Limiting locally while a store is down.

mod carried;
mod sweep;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{
    At, Entry, Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Outcome, Settlement, SettlementFacts,
    attempt, decide,
};
use limiter_core::{Decision, Error, Policy, SyncStore, Timer, WindowStore, policy};
use tokio::time::{Instant, sleep_until};

use self::carried::{Carried, Cell};
use super::outage::{Outage, OutageLog, is_denial, is_denied, later};

/// Limits in a local store while the primary one is down, and carries over afterwards what that store has charged.
///
/// Each call goes to the primary store first, and whatever it returns is returned. If it fails with
/// [`Unavailable`](limiter_core::ErrorKind::Unavailable) or [`Timeout`](limiter_core::ErrorKind::Timeout), `local` decides.
///
/// # What is carried over
/// For each log, the cost of its local entries, by cells of a 32nd of its longest window. Once the primary store responds, a sweep
/// sends one record per cell, at most 64 logs at a time. No call waits for it. It runs on the tokio runtime of whoever calls, which
/// needs timers. If that runtime ends, the next call starts the sweep again.
///
/// - A cell has the age of its newest entry, by the local store's clock, which must not step. A `MemoryStore`'s is monotonic.
///   It never lies in the primary store's future. Operations with a caller's time keep that time.
/// - A cell is repeated with the same id until the primary store confirms it or it no longer counts, so a lost answer counts once.
/// - The record keeps what any limit of the log's operations counts. Cells that no limit can tell apart are dropped, so attempts
///   push out nothing.
/// - At most 100,000 logs are carried, which take up to about 130 MB and the keys. [`dropped`](Self::dropped) counts the others.
///
/// # What an outage costs
#[doc = include_str!("fallback/costs.md")]
///
/// # Cancel safety
/// As the primary store's. A dropped reset has cleared the local log and its cells. The sweep belongs to no call. It ends with the
/// last clone; call [`flush`](Self::flush) first.
pub struct Fallback<P, L>(Arc<Shared<P, L>>);

struct Shared<P, L> {
    primary: P,
    local: L,
    outages: OutageLog,
    fallback_decisions: AtomicU64,
    carried: Mutex<Carried>,
    /// The number of carried logs, so that a healthy call takes no lock.
    waiting: AtomicUsize,
}

/// Counts everything that a log holds.
static TOTAL: Policy = policy!("4503599627370496/104249d");

impl<P, L> Fallback<P, L> {
    /// Returns `primary`, with `local` in its place while it is down.
    #[must_use]
    pub fn new(primary: P, local: L) -> Self {
        let (outages, fallback_decisions, carried, waiting) = Default::default();
        Self(Arc::new(Shared { primary, local, outages, fallback_decisions, carried, waiting }))
    }

    /// Adds a listener, which is called once when an outage begins and once when it ends. Default: none.
    ///
    /// An outage begins with the first call that fails. It is over when the primary store has answered everything for a second.
    /// The listener is called within the call that notices it.
    #[must_use]
    pub fn on_outage(self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.0.outages.listen(listener);
        self
    }

    /// Returns the primary store.
    pub fn primary(&self) -> &P {
        &self.0.primary
    }

    /// Whether an outage has begun and is not over.
    #[must_use]
    pub fn in_outage(&self) -> bool {
        self.0.outages.in_outage()
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn outages(&self) -> &OutageLog {
        &self.0.outages
    }

    /// Returns the nodes of the primary store that have failed since the start, and whether an outage of each is not over.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.0.outages.nodes()
    }

    /// Returns how many calls the local store has decided.
    #[must_use]
    pub fn fallback_decisions(&self) -> u64 {
        self.0.fallback_decisions.load(Ordering::Relaxed)
    }

    /// Returns how many logs wait to be carried over.
    #[must_use]
    pub fn carried_logs(&self) -> usize {
        self.0.waiting.load(Ordering::Acquire)
    }

    /// Returns how many logs were never carried over because there were more than 100,000.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.locked(|carried| carried.dropped)
    }
}

impl<P: WindowStore, L: SyncStore> Fallback<P, L> {
    /// Waits until everything is carried over, but no longer than `timeout`. Returns how many logs are left.
    ///
    /// Call it at shutdown, after the last request.
    ///
    /// # Cancel safety
    /// Nothing is lost: the sweep goes on.
    pub async fn flush(&self, timeout: Duration) -> usize {
        let deadline = later(timeout);
        while self.carried_logs() > 0 && Instant::now() < deadline {
            self.0.start();
            sleep_until(deadline.min(Instant::now() + Duration::from_millis(5))).await;
        }
        self.carried_logs()
    }

    /// Returns the answer to an operation, or the local one if the primary store is down.
    fn answer<T>(
        &self,
        op: &Op<'_>,
        answer: Result<T, Error>,
        is_denial: impl FnOnce(&T) -> bool,
        local: impl FnOnce(Facts) -> T,
    ) -> Result<T, Error> {
        self.0.outages.note(&answer, is_denial, || self.place(op.log).node);
        let answer = match answer {
            Err(error) if error.is_retryable() => Ok(local(self.decide_locally(op))),
            answer => answer,
        };
        self.0.start();
        answer
    }

    fn decide_locally(&self, op: &Op<'_>) -> Facts {
        self.0.locked(|carried| self.apply_locally(op, carried))
    }

    fn apply_locally(&self, op: &Op<'_>, carried: &mut Carried) -> Facts {
        self.0.fallback_decisions.fetch_add(1, Ordering::Relaxed);
        let facts = self.0.local.apply_now(op);
        if let Outcome::Appended(Entry { at, .. }) = facts.outcome {
            let cell = Cell { oldest: at, newest: at, is_given: op.at != At::StoreClock, cost: op.cost };
            carried.add(op.log, Some(op.retention()), at, cell);
        }
        facts
    }

    /// Decides operations as one. The lock keeps others from changing the local store meanwhile.
    fn decide_all_locally(&self, ops: &[JointOp<'_>]) -> JointFacts {
        self.0.locked(|carried| {
            let fits = |op: &Op<'_>| self.0.local.apply_now(&op.to_peek()).admitted;
            // Without room, it appends nothing unless it counts attempts.
            let repeats = |op: &Op<'_>| op.id.is_some() && !op.appends(false) && self.0.local.apply_now(op).admitted;
            let denier = ops.iter().position(|joint| joint.denies(fits(&joint.op) || repeats(&joint.op)));
            let decide = |(i, joint): (usize, &JointOp<'_>)| {
                let appends = denier.is_none_or(|denier| denier == i) || joint.keeps_charge;
                Ok(self.apply_locally(&if appends { joint.op } else { joint.op.to_peek() }, carried))
            };
            ops.iter().enumerate().map(decide).collect()
        })
    }

    /// Settles an entry that the local log holds.
    fn settle_locally(&self, settlement: &Settlement<'_>) -> Option<SettlementFacts> {
        let mut peek = Op::peek(settlement.log.key, &TOTAL).with_name(settlement.log.name);
        peek.at = settlement.at;
        let peek = || self.0.local.apply_now(&peek).log;
        let total = || peek().usage.first().map_or(0, |usage| usage.used);
        // Most entries are the primary store's: they take no lock.
        peek().newest?;
        let settled = self.0.locked(|carried| {
            let before = total();
            let facts = self.0.local.settle_now(settlement);
            if facts.applied {
                carried.settle(settlement, before, total(), facts.log.now);
            }
            facts
        });
        self.0.start();
        settled.applied.then_some(settled)
    }
}

#[async_trait]
impl<P: WindowStore, L: SyncStore> WindowStore for Fallback<P, L> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.primary().apply(op).await;
        self.answer(&op, answer, is_denial, |facts| facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        if let Some(facts) = self.settle_locally(&settlement) {
            return Ok(facts);
        }
        let answer = self.primary().settle(settlement).await;
        self.0.outages.note(&answer, |_| false, || self.place(settlement.log).node);
        answer
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.0.locked(|carried| {
            carried.remove(log);
            self.0.local.reset_now(log);
        });
        let answer = self.primary().reset(log).await;
        self.0.outages.note(&answer, |_| false, || self.place(log).node);
        answer
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let answer = self.primary().apply_all(ops).await;
        let Some(first) = ops.first() else { return answer };
        let is_denial = |results: &Option<JointFacts>| results.iter().flatten().flatten().all(is_denial);
        self.0.outages.note(&answer, is_denial, || self.place(first.op.log).node);
        let answer = match answer {
            Err(error) if error.is_retryable() => Ok(Some(self.decide_all_locally(ops))),
            answer => answer,
        };
        self.0.start();
        answer
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let Some(answer) = attempt(self.primary(), op) else { return otherwise() };
        let answer = op.checked().and_then(|op| self.answer(&op, answer, is_denied, |facts| decide(&op, facts)));
        Poll::Ready(answer)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.primary().timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.primary().place(log).through(&*self.0)
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
        f.debug_struct("Fallback")
            .field("primary", self.primary())
            .field("local", &self.0.local)
            .finish_non_exhaustive()
    }
}
