//! A circuit breaker.
//!
//! The state machine is the classic one: closed, open, half open. The maintained crates let several calls pass while half open,
//! which is a thundering herd for a server that has just come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Otherwise, Settlement, SettlementFacts, attempt};
use limiter_core::{Decision, Error, ErrorKind, Timer, WindowStore};
use tokio::time::Instant;

use super::outage::later;

/// Stops calling a store that fails.
///
/// - *Closed*: calls pass. After `failures` outages in a row it opens. An outage is an error of the kind
///   [`Unavailable`](ErrorKind::Unavailable) or [`Timeout`](ErrorKind::Timeout).
/// - *Open*: calls fail at once with [`Unavailable`](ErrorKind::Unavailable), for `pause`.
/// - *Half open*: after the pause one call passes as a probe, and the others still fail at once. If the store answers, the
///   breaker closes. If not, it opens for another pause.
///
/// Clones share one state.
///
/// # Cancel safety
/// As the store's. If a probe is dropped, the next call becomes the probe. If nobody polls the probe, a call after another pause
/// does.
#[derive(Clone, Debug)]
pub struct CircuitBreaker<S> {
    store: S,
    failures: u32,
    pause: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Closed and without a failure, the state while the store is available.
    healthy: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Outages in a row, while closed.
    failures: u32,
    /// When the next probe may pass. `None` while closed.
    next_probe: Option<Instant>,
}

impl<S> CircuitBreaker<S> {
    /// Returns `store` behind a breaker that opens for `pause` after `failures` outages in a row. 0 failures mean 1.
    #[must_use]
    pub fn new(store: S, failures: u32, pause: Duration) -> Self {
        let state = Mutex::new(State { failures: 0, next_probe: None });
        let shared = Arc::new(Shared { healthy: AtomicBool::new(true), state });
        Self { store, failures: failures.max(1), pause, shared }
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Whether calls fail at once. A call may still pass as a probe.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.shared.healthy.load(Ordering::Acquire) && self.shared.lock().next_probe.is_some()
    }

    fn refusal(&self, log: LogKey<'_>) -> Error {
        let text = format!("the store failed {} times in a row; it is not called before the next probe", self.failures);
        Error::new(ErrorKind::Unavailable, text).with_log(log)
    }

    /// Returns whether the call is a probe.
    fn admit(&self, log: LogKey<'_>) -> Result<Option<Probe<'_>>, Error> {
        if self.shared.healthy.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut state = self.shared.lock();
        match state.next_probe {
            None => Ok(None),
            Some(next) if Instant::now() >= next => {
                // The deadline of this probe, which nobody may poll.
                let deadline = later(self.pause);
                state.next_probe = Some(deadline);
                Ok(Some(Probe { shared: &self.shared, deadline }))
            }
            Some(_) => Err(self.refusal(log)),
        }
    }

    pub(crate) async fn guarded<T>(
        &self,
        log: LogKey<'_>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let probe = self.admit(log)?;
        let answer = call.await;
        self.note(&answer, probe);
        answer
    }

    fn note<T>(&self, answer: &Result<T, Error>, probe: Option<Probe<'_>>) {
        match answer {
            Err(error) if error.is_retryable() => self.failed(probe),
            _ => self.answered(),
        }
    }

    fn answered(&self) {
        if !self.shared.healthy.load(Ordering::Acquire) {
            let mut state = self.shared.lock();
            *state = State { failures: 0, next_probe: None };
            self.shared.healthy.store(true, Ordering::Release);
        }
    }

    fn failed(&self, probe: Option<Probe<'_>>) {
        let mut state = self.shared.lock();
        self.shared.healthy.store(false, Ordering::Release);
        if state.next_probe.is_none() {
            state.failures += 1;
        }
        // A call from before the breaker opened does not lengthen the pause.
        if probe.is_some() || (state.next_probe.is_none() && state.failures >= self.failures) {
            state.next_probe = Some(later(self.pause));
        }
        // Dropping it would let the next one pass at once.
        std::mem::forget(probe);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permits another probe when dropped.
struct Probe<'a> {
    shared: &'a Shared,
    deadline: Instant,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        // Otherwise the store has answered or failed, or another probe has passed.
        if state.next_probe == Some(self.deadline) {
            state.next_probe = Some(Instant::now());
        }
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for CircuitBreaker<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.guarded(op.log, self.store.apply(op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.guarded(settlement.log, self.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.guarded(log, self.store.reset(log)).await
    }

    /// Also answers at once while it is open.
    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || match self.admit(op.log) {
            Ok(probe) => {
                let answer = attempt(&self.store, op)?;
                self.note(&answer, probe);
                Some(answer)
            }
            Err(refusal) => Some(Err(refusal)),
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }
}
