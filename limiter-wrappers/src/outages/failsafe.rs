//! Admitting or denying all requests during an outage.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use limiter_core::store::{
    Facts, JointFacts, JointOp, Log, LogFacts, LogKey, LogPlace, Mode, Op, Otherwise, Outcome, Settlement,
    SettlementFacts, Usage, attempt, decide,
};
use limiter_core::{Decision, Error, Limit, PerLimit, Timer, Timestamp, WindowStore};

use super::outage::{Outage, OutageLog, is_denial, is_denied};

/// Admits, or denies, requests during an outage of the store: fails open, or closed.
///
/// It answers operations that fail with [`Unavailable`](limiter_core::ErrorKind::Unavailable) or
/// [`Timeout`](limiter_core::ErrorKind::Timeout). Other errors are returned, and so are those of a reset: an operator must know
/// that unblocking a key failed. An operation that timed out may still count in the store later.
///
/// | | [`open`](Self::open) | [`closed`](Self::closed) |
/// |---|---|---|
/// | an acquire or a peek | is decided as if the log were empty | is denied |
/// | a status | shows nothing used | shows the limit as used up |
/// | a record | is decided as if the log were empty | returns the error, because a denial would claim that it counts |
/// | a settlement or refund | reports that the entry is gone | returns the error |
///
/// A receipt from an outage names no entry, so a later settlement reports that the entry is gone.
///
/// # Cancel safety
/// As the store's.
#[derive(Clone, Debug)]
pub struct Failsafe<S> {
    store: S,
    failing: Failing,
    outages: OutageLog,
}

/// What decides in place of the store.
#[derive(Clone, Copy, Debug)]
enum Failing {
    /// A log that is empty.
    Open,
    /// A log that is full, and stays so for this long.
    Closed(Duration),
}

impl<S> Failsafe<S> {
    fn new(store: S, failing: Failing) -> Self {
        Self { store, failing, outages: OutageLog::default() }
    }

    /// Returns `store`, failing open.
    #[must_use]
    pub fn open(store: S) -> Self {
        Self::new(store, Failing::Open)
    }

    /// Returns `store`, failing closed. Denials during an outage have this retry-after, or the longest window if that is shorter.
    /// Zero means 1 µs.
    #[must_use]
    pub fn closed(store: S, retry_after: Duration) -> Self {
        Self::new(store, Failing::Closed(retry_after.max(Duration::from_micros(1))))
    }

    /// Adds a listener, which is called once when an outage begins and once when it ends, within the call that notices it. Each
    /// [node](LogPlace::node) of the store has outages of its own. One is over when the node has answered everything for a second.
    /// Default: none.
    #[must_use]
    pub fn on_outage(self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.outages.listen(listener);
        self
    }

    /// Whether an outage of any node has begun and is not over.
    #[must_use]
    pub fn in_outage(&self) -> bool {
        self.outages.in_outage()
    }

    #[cfg(feature = "metrics")]
    pub(crate) const fn outages(&self) -> &OutageLog {
        &self.outages
    }

    /// Returns the nodes that have failed since the start, and whether an outage of each is not over.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.outages.nodes()
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }
}

impl<S: WindowStore> Failsafe<S> {
    /// Returns the answer to an operation, or what replaces it if the store is down.
    fn answer<T>(
        &self,
        op: &Op<'_>,
        answer: Result<T, Error>,
        is_denial: impl FnOnce(&T) -> bool,
        replaced: impl FnOnce(Facts) -> T,
    ) -> Result<T, Error> {
        self.outages.note(&answer, is_denial, || self.place(op.log).node);
        // The ids of its entries are new, so their receipts name nothing.
        let empty = || Log::new().apply(op, now());
        match (answer, self.failing) {
            (Err(error), Failing::Open) if error.is_retryable() => Ok(replaced(empty())),
            (Err(error), Failing::Closed(retry_after)) if error.is_retryable() && op.mode != Mode::Record => {
                Ok(replaced(full(op, retry_after, &empty())))
            }
            (answer, _) => answer,
        }
    }
}

/// Returns the facts of a log that is full for `retry_after`, given those of an empty one.
fn full(op: &Op<'_>, retry_after: Duration, empty: &Facts) -> Facts {
    let now = empty.log.now;
    let retry_after = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
    let oldest = |limit: &Limit| {
        let age = limit.window().as_micros().saturating_sub(retry_after);
        Timestamp::from_micros_saturating(now.as_micros().saturating_sub(age))
    };
    let usage = PerLimit::of(op.policy, |limit| {
        let oldest = oldest(limit);
        Usage { used: limit.max(), oldest, blocker: oldest }
    });
    let (outcome, newest) = if op.appends(false) {
        (empty.outcome, Some(now))
    } else {
        (Outcome::Nothing, op.policy.limits().iter().map(oldest).max())
    };
    Facts { admitted: false, refundable: false, outcome, log: LogFacts { now, newest, usage } }
}

/// Returns the facts of logs that are full. `None` if a record would have to count.
fn deny_all(ops: &[JointOp<'_>], retry_after: Duration) -> Option<Vec<Facts>> {
    let denier = ops.iter().position(|joint| joint.denies(false));
    let deny = |(i, joint): (usize, &JointOp<'_>)| {
        let is_held = denier.is_some_and(|denier| denier != i) && !joint.keeps_charge;
        let op = if is_held { joint.op.to_peek() } else { joint.op };
        (op.mode != Mode::Record).then(|| full(&op, retry_after, &Log::new().apply(&op, now())))
    };
    ops.iter().enumerate().map(deny).collect()
}

/// Returns the system's time.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros_saturating(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[async_trait]
impl<S: WindowStore> WindowStore for Failsafe<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.store.apply(op).await;
        self.answer(&op, answer, is_denial, |facts| facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let answer = self.store.settle(settlement).await;
        self.outages.note(&answer, |_| false, || self.place(settlement.log).node);
        match (answer, self.failing) {
            (Err(error), Failing::Open) if error.is_retryable() => Ok(Log::new().settle(&settlement, now())),
            (answer, _) => answer,
        }
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store.reset(log).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let answer = self.store.apply_all(ops).await;
        let Some(first) = ops.first() else { return answer };
        let is_denial = |results: &Option<JointFacts>| results.iter().flatten().flatten().all(is_denial);
        self.outages.note(&answer, is_denial, || self.place(first.op.log).node);
        let replaced = match (&answer, self.failing) {
            (Err(error), Failing::Open) if error.is_retryable() => {
                Some(Log::apply_all(&mut vec![Log::new(); ops.len()], ops, now()))
            }
            (Err(error), Failing::Closed(retry_after)) if error.is_retryable() => deny_all(ops, retry_after),
            _ => None,
        };
        replaced.map_or(answer, |facts| Ok(Some(facts.into_iter().map(Ok).collect())))
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let Some(answer) = attempt(&self.store, op) else { return otherwise() };
        Poll::Ready(op.checked().and_then(|op| self.answer(&op, answer, is_denied, |facts| decide(&op, facts))))
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}
