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
    /// How many outages have begun, and how long those that are over took in all.
    begun: u64,
    over: Duration,
}

#[derive(Default)]
struct NodeState {
    began: Option<Instant>,
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

    /// Returns how many outages have begun, and how long they have taken in all.
    #[cfg(feature = "metrics")]
    pub(crate) fn totals(&self) -> (u64, Duration) {
        let state = self.lock();
        let running = state.nodes.values().filter_map(|node| node.began).map(|began| began.elapsed());
        (state.begun, running.fold(state.over, Duration::saturating_add))
    }

    /// Notes the answer to a call. `is_denial` says whether a denial cache may have given it, which proves nothing.
    pub(crate) fn note<T>(
        &self,
        answer: &Result<T, Error>,
        is_denial: impl FnOnce(&T) -> bool,
        node: impl FnOnce() -> Node,
    ) {
        match answer {
            Err(error) if error.is_retryable() => self.failed(error, &node()),
            Ok(answer) if is_denial(answer) => {}
            _ if self.in_outage() => self.answered(&node()),
            _ => {}
        }
    }

    fn failed(&self, error: &Error, node: &Node) {
        let mut locked = self.lock();
        let state = locked.nodes.entry(node.clone()).or_default();
        (state.calls, state.answering_since) = (state.calls + 1, None);
        if state.failed.replace(Instant::now()).is_none() {
            state.began = state.failed;
            locked.begun += 1;
            self.0.in_outage.store(true, Ordering::Release);
            report(locked, &[Outage::Began { node: node.as_deref(), error }]);
        }
    }

    fn answered(&self, node: &Node) {
        let mut locked = self.lock();
        if let Some(state) = locked.nodes.get_mut(node) {
            state.answering_since.get_or_insert_with(Instant::now);
        }
        let over = locked.nodes.iter_mut().filter(|(_, state)| state.is_over());
        let over: Vec<_> = over.map(|(node, state)| (node.clone(), std::mem::take(state))).collect();
        let took = over.iter().filter_map(|(_, state)| state.began).map(|began| began.elapsed());
        locked.over = took.fold(locked.over, Duration::saturating_add);
        let in_outage = locked.nodes.values().any(|state| state.failed.is_some());
        self.0.in_outage.store(in_outage, Ordering::Release);
        let ended = over.iter().map(|(node, state)| Outage::Ended { node: node.as_deref(), calls: state.calls });
        report(locked, &ended.collect::<Vec<_>>());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a denial cache may have given these facts.
pub(super) fn is_denial(facts: &Facts) -> bool {
    !facts.admitted && facts.outcome == Outcome::Nothing
}

/// Whether a denial cache may have given this decision.
pub(super) fn is_denied(decision: &Decision) -> bool {
    !decision.allowed() && !decision.appended()
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
