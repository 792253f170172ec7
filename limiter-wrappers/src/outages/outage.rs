//! When outages begin and end.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::store::{Facts, Outcome};
use limiter_core::{Decision, Error};
use tokio::time::Instant;

/// A [node](limiter_core::store::LogPlace::node) of a store, `None` if it has no name.
pub(crate) type Node = Option<Arc<str>>;

/// The beginning or the end of an outage of the store, or of one of its nodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outage<'a> {
    /// The node has just failed for the first time.
    Began {
        /// The [node](limiter_core::store::LogPlace::node) of the store, if it has a name.
        node: Option<&'a str>,
        /// Why.
        error: &'a Error,
    },
    /// The node has answered everything for a second, or nothing has called it for a minute.
    Ended {
        /// The [node](limiter_core::store::LogPlace::node) of the store, if it has a name.
        node: Option<&'a str>,
        /// The number of calls that it could not answer.
        calls: u64,
    },
}

/// How long a node must answer everything until its outage is over.
const CALM: Duration = Duration::from_secs(1);
/// A node that no call has asked for so long has left the store.
pub(super) const LEFT: Duration = Duration::from_secs(60);

type Listener = Arc<dyn Fn(Outage<'_>) + Send + Sync>;

/// Reports each outage of a node once, however many calls it affects, and however many others the node answers meanwhile.
///
/// ```text
///           failure                answer
///   well ───────────► out ◄──────────────────► answering ─── answer, a second later ───► well
///                                 failure
/// ```
#[derive(Clone, Default)]
pub(crate) struct OutageLog(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whether there is an outage, so that a call of a store that is well takes no lock and asks for no node.
    in_outage: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: Vec<Listener>,
    /// The nodes that have failed at some time.
    nodes: HashMap<Node, NodeState>,
}

#[derive(Default)]
struct NodeState {
    /// When it last failed. `None` while it is well.
    failed: Option<Instant>,
    /// The calls that the outage has affected so far.
    calls: u64,
    /// The first answer since the last failure.
    answering_since: Option<Instant>,
}

impl NodeState {
    fn is_over(&self) -> bool {
        let left = self.failed.is_some_and(|failed| failed.elapsed() > LEFT);
        self.failed.is_some() && self.answering_since.map_or(left, |since| since.elapsed() >= CALM)
    }
}

impl OutageLog {
    pub(crate) fn listen(&self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) {
        self.lock().listeners.push(Arc::new(listener));
    }

    pub(crate) fn in_outage(&self) -> bool {
        self.0.in_outage.load(Ordering::Acquire)
    }

    /// Returns the nodes that have failed at some time, and whether they are out.
    pub(crate) fn nodes(&self) -> Vec<(Node, bool)> {
        self.lock().nodes.iter().map(|(node, state)| (node.clone(), state.failed.is_some())).collect()
    }

    /// Notes the answer to an operation.
    pub(crate) fn note(&self, answer: &Result<Facts, Error>, node: impl FnOnce() -> Node) {
        match answer {
            // A denial cache may have answered, which says nothing about the store.
            Ok(Facts { admitted: false, outcome: Outcome::Nothing, .. }) => {}
            answer => self.note_change(answer, node),
        }
    }

    /// Notes the answer to an operation that was decided immediately.
    pub(crate) fn note_decision(&self, answer: &Result<Decision, Error>, node: impl FnOnce() -> Node) {
        if !answer.as_ref().is_ok_and(|decision| !decision.allowed() && !decision.appended()) {
            self.note_change(answer, node);
        }
    }

    /// Notes the answer to a settlement or a reset.
    pub(crate) fn note_change<T>(&self, answer: &Result<T, Error>, node: impl FnOnce() -> Node) {
        self.note_calls(answer, node, 1);
    }

    /// Notes the answer to a call that nobody waits for.
    pub(crate) fn note_sweep<T>(&self, answer: &Result<T, Error>, node: impl FnOnce() -> Node) {
        self.note_calls(answer, node, 0);
    }

    fn note_calls<T>(&self, answer: &Result<T, Error>, node: impl FnOnce() -> Node, calls: u64) {
        match answer {
            Err(error) if error.is_retryable() => self.failed(error, &node(), calls),
            _ if self.in_outage() => {
                if let Some(state) = self.lock().nodes.get_mut(&node()) {
                    state.answering_since.get_or_insert_with(Instant::now);
                }
                self.end();
            }
            _ => {}
        }
    }

    pub(crate) fn failed(&self, error: &Error, node: &Node, calls: u64) {
        let mut locked = self.lock();
        let state = locked.nodes.entry(node.clone()).or_default();
        state.calls += calls;
        state.answering_since = None;
        if state.failed.replace(Instant::now()).is_none() {
            self.0.in_outage.store(true, Ordering::Release);
            report(locked, &[Outage::Began { node: node.as_deref(), error }]);
        }
    }

    /// Returns how long until an outage is over if nothing fails. `None` if there is no outage, or its node has not answered.
    pub(crate) fn ends_in(&self) -> Option<Duration> {
        let locked = self.lock();
        let since =
            locked.nodes.values().filter(|state| state.failed.is_some()).filter_map(|node| node.answering_since);
        since.map(|since| CALM.saturating_sub(since.elapsed())).min()
    }

    /// Ends the outages that are over.
    pub(crate) fn end(&self) {
        let mut locked = self.lock();
        let over = locked.nodes.iter_mut().filter(|(_, state)| state.is_over());
        let over: Vec<_> = over.map(|(node, state)| (node.clone(), std::mem::take(state).calls)).collect();
        let in_outage = locked.nodes.values().any(|state| state.failed.is_some());
        self.0.in_outage.store(in_outage, Ordering::Release);
        let ended = over.iter().map(|(node, calls)| Outage::Ended { node: node.as_deref(), calls: *calls });
        report(locked, &ended.collect::<Vec<_>>());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the listeners without the lock: they may call the store.
fn report(state: MutexGuard<'_, State>, outages: &[Outage<'_>]) {
    let listeners = state.listeners.clone();
    drop(state);
    for outage in outages {
        listeners.iter().for_each(|listener| listener(*outage));
    }
}

impl fmt::Debug for OutageLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutageLog").field("in_outage", &self.in_outage()).finish_non_exhaustive()
    }
}

/// Returns the instant after `duration`, or one in the distant future if there is none.
pub(crate) fn later(duration: Duration) -> Instant {
    let now = Instant::now();
    // Thirty years, as tokio's timers do.
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
}
