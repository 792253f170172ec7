//! A circuit breaker.
//!
//! The state machine is the classic one: closed, open, half open. The maintained crates let several calls pass while half open,
//! which is a thundering herd for a server that has just come back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts, attempt,
};
use limiter_core::{Decision, Error, ErrorKind, Timer, WindowStore};
use tokio::time::Instant;

use super::outage::{LEFT, Node, later};

/// Callers that wait for less say nothing about the store.
const HURRY: Duration = Duration::from_millis(100);

/// Stops calling a store that fails.
///
/// - *Closed*: calls pass. After `failures` outages in a row it opens. An outage is an error of the kind
///   [`Unavailable`](ErrorKind::Unavailable) or [`Timeout`](ErrorKind::Timeout). A timeout is none if the caller
///   waits for [less than 100 ms](Op::timeout): one caller's hurry must not open the breaker for all.
/// - *Open*: calls fail immediately with [`Unavailable`](ErrorKind::Unavailable), for `pause`.
/// - *Half open*: after the pause one call passes as a probe, and the others still fail immediately. If the store responds, the
///   breaker closes. If not, it opens for another pause.
///
/// Each [node](LogPlace::node) of the store has such a state of its own, so a dead master of a Redis Cluster stops only the calls on
/// its logs. Clones share all states.
///
/// # Cancel safety
/// As the store's. A probe that is dropped says nothing, so another passes after a pause.
#[derive(Clone, Debug)]
pub struct CircuitBreaker<S> {
    store: S,
    failures: u32,
    pause: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// No node has failed lately, so that a call takes no lock.
    healthy: AtomicBool,
    /// The nodes that have failed at some time.
    nodes: Mutex<HashMap<Node, State>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Outages in a row, until it opens.
    failures: u32,
    /// While open, when the next probe may pass; before, when the last call failed.
    next: Instant,
}

impl State {
    fn has_left(&self) -> bool {
        self.next.elapsed() > LEFT
    }
}

impl<S> CircuitBreaker<S> {
    /// Returns `store` behind a breaker that opens for `pause` after `failures` outages in a row. 0 failures mean 1.
    #[must_use]
    pub fn new(store: S, failures: u32, pause: Duration) -> Self {
        let shared = Arc::new(Shared { healthy: AtomicBool::new(true), nodes: Mutex::default() });
        Self { store, failures: failures.max(1), pause, shared }
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Whether calls to any node fail immediately. A call may still pass as a probe.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.nodes().iter().any(|(_, is_open)| *is_open)
    }

    /// Returns the nodes that have failed since the start, and whether calls to each fail immediately.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.lock().iter().map(|(node, state)| (node.clone(), self.is_open_at(state))).collect()
    }

    fn is_open_at(&self, state: &State) -> bool {
        state.failures >= self.failures && !state.has_left()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Node, State>> {
        self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: WindowStore> CircuitBreaker<S> {
    /// Refuses a call while its node's breaker is open. After the pause, the first call that is a probe passes, and all that are not.
    fn admit(&self, log: LogKey<'_>, is_probe: bool) -> Result<(), Error> {
        if self.shared.healthy.load(Ordering::Acquire) {
            return Ok(());
        }
        let (node, now) = (self.place(log).node, Instant::now());
        let mut nodes = self.lock();
        let Some(state) = nodes.get_mut(&node).filter(|state| self.is_open_at(state)) else { return Ok(()) };
        if now >= state.next {
            if is_probe {
                state.next = later(self.pause);
            }
            return Ok(());
        }
        let node = node.map_or_else(String::new, |node| format!(" on {node}"));
        let failed = format!("the store failed {} times in a row{node}", self.failures);
        let text = format!("{failed}; it is not called before the next probe");
        Err(Error::new(ErrorKind::Unavailable, text).with_log(log))
    }

    fn note<T>(&self, log: LogKey<'_>, answer: &Result<T, Error>) {
        let failed = answer.as_ref().is_err_and(Error::is_retryable);
        if !failed && self.shared.healthy.load(Ordering::Acquire) {
            return;
        }
        let node = self.place(log).node;
        let mut nodes = self.lock();
        for (known, state) in nodes.iter_mut() {
            if state.has_left() || (!failed && *known == node) {
                state.failures = 0;
            }
        }
        if failed {
            let now = Instant::now();
            let state = nodes.entry(node).or_insert(State { failures: 0, next: now });
            // A call from before the breaker opened does not lengthen the pause.
            if state.failures < self.failures {
                state.failures += 1;
                state.next = if state.failures < self.failures { now } else { later(self.pause) };
            }
        }
        self.shared.healthy.store(nodes.values().all(|state| state.failures == 0), Ordering::Release);
    }

    async fn guarded<T>(
        &self,
        log: LogKey<'_>,
        timeout: Option<Duration>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.admit(log, true)?;
        let answer = call.await;
        let is_hurried = timeout.is_some_and(|timeout| timeout < HURRY);
        if !(is_hurried && answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout)) {
            self.note(log, &answer);
        }
        answer
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for CircuitBreaker<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.guarded(op.log, op.timeout, self.store.apply(op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.guarded(settlement.log, None, self.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.guarded(log, None, self.store.reset(log)).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let Some(first) = ops.first() else { return self.store.apply_all(ops).await };
        self.guarded(first.op.log, first.op.timeout, self.store.apply_all(ops)).await
    }

    /// Also responds immediately while it is open.
    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        if let Err(refusal) = self.admit(op.log, false) {
            return Poll::Ready(Err(refusal));
        }
        let Some(answer) = attempt(&self.store, op) else { return otherwise() };
        self.note(op.log, &answer);
        Poll::Ready(answer)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}
