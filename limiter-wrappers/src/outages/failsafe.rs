//! Admitting or denying all requests during an outage.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use limiter_core::store::{
    At, Entry, Facts, LogFacts, LogKey, Mode, Op, Otherwise, Outcome, Settlement, SettlementFacts, Usage, attempt,
    decide,
};
use limiter_core::{Decision, Error, Limit, PerLimit, Policy, Timer, Timestamp, WindowStore};

use super::ids::Ids;
use super::outage::{Outage, OutageLog};

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
    answer: Answer,
    ids: Arc<Ids>,
    outages: OutageLog,
}

/// What decides in place of the store.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// A log that is empty.
    Open,
    /// A log that is full, and stays so for this long.
    Closed(Duration),
}

impl<S> Failsafe<S> {
    fn new(store: S, answer: Answer) -> Self {
        Self { store, answer, ids: Arc::new(Ids::new()), outages: OutageLog::default() }
    }

    /// Returns `store`, failing open.
    #[must_use]
    pub fn open(store: S) -> Self {
        Self::new(store, Answer::Open)
    }

    /// Returns `store`, failing closed. Denials during an outage have this retry-after, or the longest window if that is shorter.
    /// Zero means 1 µs.
    #[must_use]
    pub fn closed(store: S, retry_after: Duration) -> Self {
        Self::new(store, Answer::Closed(retry_after.max(Duration::from_micros(1))))
    }

    /// Adds a listener, which is called once when an outage begins and once when it ends, within the call that notices it. An outage
    /// is over when the store has answered everything for a second. Default: none.
    #[must_use]
    pub fn on_outage(self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.outages.listen(listener);
        self
    }

    /// Whether an outage has begun and is not over.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.outages.is_out()
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Returns the answer to an operation that failed with a retryable error.
    fn substitute(&self, op: &Op<'_>, error: Error) -> Result<Facts, Error> {
        match self.answer {
            Answer::Closed(_) if op.mode == Mode::Record => Err(error),
            answer => Ok(answer.facts(op, &self.ids)),
        }
    }
}

impl Answer {
    fn facts(self, op: &Op<'_>, ids: &Ids) -> Facts {
        let now = time(op.at);
        let admitted = matches!(self, Self::Open) && op.policy.limits().iter().all(|limit| op.cost <= limit.max());
        let appends = op.appends(admitted);
        let oldest = |limit: &Limit| match self {
            Self::Open => now,
            Self::Closed(retry_after) => {
                let retry_after = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
                let age = limit.window().as_micros().saturating_sub(retry_after);
                Timestamp::from_micros_saturating(now.as_micros().saturating_sub(age))
            }
        };
        let used = |limit: &Limit| match self {
            Self::Open => {
                if appends {
                    op.cost
                } else {
                    0
                }
            }
            Self::Closed(_) => limit.max(),
        };
        let newest = match self {
            _ if appends => Some(now),
            Self::Open => None,
            Self::Closed(_) => op.policy.limits().iter().map(oldest).max(),
        };
        let entry = || Entry { id: op.id.unwrap_or_else(|| ids.next()), at: now };
        Facts {
            admitted,
            outcome: if appends { Outcome::Appended(entry()) } else { Outcome::Nothing },
            log: LogFacts { now, newest, usage: usage(op.policy, |limit| (used(limit), oldest(limit))) },
        }
    }
}

/// Returns the time of an operation: the given one, or the system's.
fn time(at: At) -> Timestamp {
    match at {
        At::Given(at) => at,
        At::StoreClock => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_micros_saturating(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
        }
    }
}

/// Makes the usage of each limit from what is used, and when that expires.
fn usage(policy: &Policy, each: impl Fn(&Limit) -> (u64, Timestamp)) -> PerLimit<Usage> {
    let usage = policy.limits().iter().map(each).map(|(used, oldest)| Usage { used, oldest, blocker: oldest });
    // A policy has at least one limit, and no more than fit.
    PerLimit::from_slice(&usage.collect::<Vec<_>>()).unwrap_or(PerLimit::from([Usage::default()]))
}

#[async_trait]
impl<S: WindowStore> WindowStore for Failsafe<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.store.apply(op).await;
        self.outages.note(&answer);
        match answer {
            Err(error) if error.is_retryable() => self.substitute(&op, error),
            answer => answer,
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let answer = self.store.settle(settlement).await;
        self.outages.note_change(&answer);
        match (answer, self.answer) {
            (Err(error), Answer::Open) if error.is_retryable() => {
                let now = time(settlement.at);
                let log = LogFacts { now, newest: None, usage: usage(settlement.policy, |_| (0, now)) };
                Ok(SettlementFacts { applied: false, log })
            }
            (answer, _) => answer,
        }
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store.reset(log).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || match attempt(&self.store, op)? {
            Err(error) if error.is_retryable() => {
                self.outages.failed(&error, 1);
                Some(op.checked().and_then(|op| Ok(decide(&op, self.substitute(&op, error)?))))
            }
            answer => Some(answer),
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }
}
