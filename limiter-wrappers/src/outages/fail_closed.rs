//! Denying what a store cannot decide.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Mode, Op, Otherwise, Settlement, SettlementFacts, attempt, decide};
use limiter_core::{Decision, Error, Timer, WindowStore};

use super::outage::{Outage, OutageLog};
use super::substitute::{self, Ids};

/// Denies what a store could not decide because it is away.
///
/// An acquire or a peek that fails with [`Unavailable`](limiter_core::ErrorKind::Unavailable) or
/// [`Timeout`](limiter_core::ErrorKind::Timeout) is denied, with the retry-after that it was built with, or the longest window if
/// that is shorter. So a status reads as if the limit were used up. Errors of records, settlements and resets pass, because a
/// denial would say that they had their effect. Other errors pass, too.
///
/// # Cancel safety
/// As the store's.
#[derive(Clone, Debug)]
pub struct FailClosed<S> {
    store: S,
    retry_after: Duration,
    ids: Arc<Ids>,
    outages: OutageLog,
}

impl<S> FailClosed<S> {
    /// Returns `store`, failing closed, with this retry-after for what it could not decide. Zero means 1 µs.
    #[must_use]
    pub fn new(store: S, retry_after: Duration) -> Self {
        let retry_after = retry_after.max(Duration::from_micros(1));
        Self { store, retry_after, ids: Arc::new(Ids::new()), outages: OutageLog::default() }
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

    fn deny(&self, op: &Op<'_>) -> Facts {
        substitute::deny(op, &self.ids, self.retry_after)
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for FailClosed<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.store.apply(op).await;
        self.outages.note(&answer);
        match answer {
            Err(error) if error.is_retryable() && op.mode != Mode::Record => Ok(self.deny(&op)),
            answer => answer,
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.store.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store.reset(log).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || match attempt(&self.store, op)? {
            Err(error) if error.is_retryable() => {
                self.outages.failed(&error, 1);
                if op.mode == Mode::Record {
                    return Some(Err(error));
                }
                Some(op.checked().map(|op| decide(&op, self.deny(&op))))
            }
            answer => Some(answer),
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }
}
