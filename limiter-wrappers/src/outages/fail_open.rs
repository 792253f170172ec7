//! Admitting what a store cannot decide.

use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Otherwise, Settlement, SettlementFacts, attempt, decide};
use limiter_core::{Decision, Error, Timer, WindowStore};

use super::outage::{Outage, OutageLog};
use super::substitute::{self, Ids};

/// Admits what a store could not decide because it is away.
///
/// An operation that fails with [`Unavailable`](limiter_core::ErrorKind::Unavailable) or
/// [`Timeout`](limiter_core::ErrorKind::Timeout) is decided as if the log were empty. Its receipt names no entry, so settling it
/// later says that the entry is gone. Other errors pass. A reset also passes its error: whoever unblocks a key must know that it
/// did not work.
///
/// An operation that timed out may still count in the store later.
///
/// # Cancel safety
/// As the store's.
#[derive(Clone, Debug)]
pub struct FailOpen<S> {
    store: S,
    ids: Arc<Ids>,
    outages: OutageLog,
}

impl<S> FailOpen<S> {
    /// Returns `store`, failing open.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, ids: Arc::new(Ids::new()), outages: OutageLog::default() }
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
}

#[async_trait]
impl<S: WindowStore> WindowStore for FailOpen<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.store.apply(op).await;
        self.outages.note(&answer);
        match answer {
            Err(error) if error.is_retryable() => Ok(substitute::admit(&op, &self.ids)),
            answer => answer,
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let answer = self.store.settle(settlement).await;
        self.outages.note_change(&answer);
        match answer {
            Err(error) if error.is_retryable() => Ok(substitute::not_settled(&settlement)),
            answer => answer,
        }
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store.reset(log).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || match attempt(&self.store, op)? {
            Err(error) if error.is_retryable() => {
                self.outages.failed(&error, 1);
                Some(op.checked().map(|op| decide(&op, substitute::admit(&op, &self.ids))))
            }
            answer => Some(answer),
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }
}
