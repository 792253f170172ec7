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
use limiter_core::store::{Facts, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts, attempt};
use limiter_core::{Decision, Error, ErrorKind, Timer, WindowStore};
use tokio::time::Instant;

use super::outage::{LEFT, Node, later};

/// Stops calling a store that fails.
///
/// - *Closed*: calls pass. After `failures` outages in a row it opens. An outage is an error of the kind
///   [`Unavailable`](ErrorKind::Unavailable) or [`Timeout`](ErrorKind::Timeout).
/// - *Open*: calls fail immediately with [`Unavailable`](ErrorKind::Unavailable), for `pause`.
/// - *Half open*: after the pause one call passes as a probe, and the others still fail immediately. If the store responds, the
///   breaker closes. If not, it opens for another pause.
///
/// Each [node](LogPlace::node) of the store has such a state of its own, so a dead master of a Redis Cluster stops only the calls on
/// its logs. Clones share all states.
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
    /// No node has failed lately, so that a call takes no lock.
    healthy: AtomicBool,
    /// The nodes that have failed at some time.
    nodes: Mutex<HashMap<Node, State>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Outages in a row, until it opens.
    failures: u32,
    is_open: bool,
    /// When the next probe may pass; while closed, when the last call failed.
    next: Instant,
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
        !self.shared.healthy.load(Ordering::Acquire) && self.nodes().iter().any(|(_, is_open)| *is_open)
    }

    /// Returns the nodes that have failed since the start, and whether calls to each fail immediately.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        let nodes = self.shared.lock();
        nodes.iter().map(|(node, state)| (node.clone(), state.is_open && !state.has_left())).collect()
    }

    fn refusal(&self, log: LogKey<'_>, node: &Node) -> Error {
        let node = node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
        let text =
            format!("the store failed {} times in a row{node}; it is not called before the next probe", self.failures);
        Error::new(ErrorKind::Unavailable, text).with_log(log)
    }
}

impl<S: WindowStore> CircuitBreaker<S> {
    fn node(&self, log: LogKey<'_>) -> Node {
        self.store.place(log).node
    }

    /// Returns whether the call is a probe.
    fn admit(&self, log: LogKey<'_>) -> Result<Option<Probe<'_>>, Error> {
        if self.shared.healthy.load(Ordering::Acquire) {
            return Ok(None);
        }
        let node = self.node(log);
        let mut nodes = self.shared.lock();
        let Some(state) = nodes.get_mut(&node).filter(|state| state.is_open) else { return Ok(None) };
        if Instant::now() < state.next {
            return Err(self.refusal(log, &node));
        }
        // The deadline of this probe, which nobody may poll.
        state.next = later(self.pause);
        Ok(Some(Probe { shared: &self.shared, node, deadline: state.next }))
    }

    pub(crate) async fn guarded<T>(
        &self,
        log: LogKey<'_>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let probe = self.admit(log)?;
        let answer = call.await;
        self.note(log, &answer, probe);
        answer
    }

    fn note<T>(&self, log: LogKey<'_>, answer: &Result<T, Error>, probe: Option<Probe<'_>>) {
        match answer {
            Err(error) if error.is_retryable() => self.failed(log, probe),
            _ if self.shared.healthy.load(Ordering::Acquire) => {}
            _ => {
                let node = self.node(log);
                self.shared.change(|nodes| {
                    for (_, state) in nodes.iter_mut().filter(|(known, state)| **known == node || state.has_left()) {
                        (state.failures, state.is_open) = (0, false);
                    }
                });
            }
        }
    }

    fn failed(&self, log: LogKey<'_>, mut probe: Option<Probe<'_>>) {
        let probed = probe.as_mut().map(|probe| probe.node.take());
        let is_probe = probed.is_some();
        let node = probed.unwrap_or_else(|| self.node(log));
        self.shared.change(|nodes| {
            let now = Instant::now();
            let well = State { failures: 0, is_open: false, next: now };
            let state = nodes.entry(node).or_insert(well);
            if state.has_left() {
                *state = well;
            }
            if !state.is_open {
                (state.failures, state.next) = (state.failures + 1, now);
            }
            // A call from before the breaker opened does not lengthen the pause.
            if is_probe || (!state.is_open && state.failures >= self.failures) {
                (state.is_open, state.next) = (true, later(self.pause));
            }
        });
        // Dropping it would let the next one pass immediately.
        std::mem::forget(probe);
    }
}

impl State {
    fn has_left(&self) -> bool {
        self.next.elapsed() > LEFT
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Node, State>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Node, State>)) {
        let mut nodes = self.lock();
        change(&mut nodes);
        self.healthy.store(nodes.values().all(|state| state.failures == 0), Ordering::Release);
    }
}

/// Permits another probe of the node when dropped.
struct Probe<'a> {
    shared: &'a Shared,
    node: Node,
    deadline: Instant,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        // Otherwise the node has answered or failed, or another probe has passed.
        if let Some(state) = self.shared.lock().get_mut(&self.node)
            && state.next == self.deadline
        {
            state.next = Instant::now();
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

    /// Also responds immediately while it is open.
    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || match self.admit(op.log) {
            Ok(probe) => {
                let answer = attempt(&self.store, op)?;
                self.note(op.log, &answer, probe);
                Some(answer)
            }
            Err(refusal) => Some(Err(refusal)),
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}
