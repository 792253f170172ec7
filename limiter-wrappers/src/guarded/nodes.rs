//! A store's failing nodes: the circuit breaker and the outages of each.
//!
//! The breaker is the classic one: closed, open, half open. The maintained crates let several calls pass while half open, which is
//! a thundering herd for a server that has just come back.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::{Error, ErrorKind};
use tokio::time::Instant;

/// A [node](limiter_core::WindowStore::node) of a store, `None` if it has no name.
pub(crate) type NodeName = Option<Arc<str>>;

/// The beginning or the end of an outage of the store, or of one of its nodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outage<'a> {
    /// The node has just failed for the first time.
    Began {
        /// The [node](limiter_core::WindowStore::node) of the store, if it has a name.
        node: Option<&'a str>,
        /// Why.
        error: &'a Error,
    },
    /// The node has responded to every call for a second, and has written if only writes had failed; or nothing has called it for a
    /// minute.
    Ended {
        /// The [node](limiter_core::WindowStore::node) of the store, if it has a name.
        node: Option<&'a str>,
        /// The number of its failed calls.
        calls: u64,
    },
}

/// How long a node must respond to every call before its outage is over.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// A node that has not been called for this long is no longer part of the store. Without a failed write for this long, writes are not
/// known to be refused.
const GONE_AFTER: Duration = Duration::from_secs(60);

type Listener = Arc<dyn Fn(Outage<'_>) + Send + Sync>;

/// What the result of a call proves about its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// No server saw the call.
    Nothing,
    /// The node responds.
    Responds,
    /// The node has written.
    Writes,
}

/// The nodes of a store that have failed.
///
/// A node's outage is reported once, regardless of how many calls fail or succeed during it.
///
/// ```text
///           failure                response
///   well ───────────► out ◄──────────────────► responding ─── response, a second later ───► well
///                                 failure
/// ```
pub(super) struct Nodes {
    /// The number of consecutive failures after which a node's breaker opens.
    threshold: u32,
    /// How long it stays open before each probe.
    pause: Duration,
    /// Whether any node has an outage, so that calls to a healthy store take no lock and look up no node.
    in_outage: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: Vec<Listener>,
    /// The nodes that have failed at some time, with their outages.
    nodes: HashMap<NodeName, Option<CurrentOutage>>,
    /// How many outages have begun.
    begun: u64,
}

/// An outage that is not over.
pub(super) struct CurrentOutage {
    failed: Instant,
    /// The first response since the last failure.
    responding_since: Option<Instant>,
    /// The calls that it has affected so far.
    calls: u64,
    /// Whether only calls that write have failed: a full Redis refuses those, and still responds to the others.
    only_writes: bool,
    /// Whether the node has written since the last failure.
    has_written: bool,
    /// Failures in a row, until the breaker opens.
    failures: u32,
    /// While the breaker is open, when the next probe may pass.
    probe: Option<Instant>,
}

impl CurrentOutage {
    fn is_gone(&self) -> bool {
        self.failed.elapsed() > GONE_AFTER
            && self.probe.is_none_or(|probe| probe.elapsed() > GONE_AFTER)
    }

    pub(super) fn has_open_breaker(&self) -> bool {
        self.probe.is_some() && !self.is_gone()
    }

    fn is_over(&self) -> bool {
        let Some(since) = self.responding_since else {
            return self.is_gone();
        };
        let may_refuse =
            self.only_writes && !self.has_written && self.failed.elapsed() <= GONE_AFTER;
        since.elapsed() >= STABLE_AFTER && !may_refuse
    }

    fn fail(&mut self) {
        (self.calls, self.failed, self.responding_since) = (self.calls + 1, Instant::now(), None);
        self.has_written = false;
    }
}

impl Nodes {
    /// 0 failures mean 1.
    pub(super) fn new(threshold: u32, pause: Duration) -> Self {
        Self {
            threshold: threshold.max(1),
            pause,
            in_outage: AtomicBool::default(),
            state: Mutex::default(),
        }
    }

    pub(super) fn listen(&self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) {
        self.lock().listeners.push(Arc::new(listener));
    }

    pub(super) fn in_outage(&self) -> bool {
        self.in_outage.load(Ordering::Acquire)
    }

    /// Returns the nodes that have ever failed, and whether each has an outage for which the predicate holds.
    pub(super) fn which(&self, is_so: impl Fn(&CurrentOutage) -> bool) -> Vec<(NodeName, bool)> {
        let is_so = |outage: &Option<CurrentOutage>| outage.as_ref().is_some_and(&is_so);
        let state = self.lock();
        let nodes = state.nodes.iter();
        nodes
            .map(|(node, outage)| (node.clone(), is_so(outage)))
            .collect()
    }

    /// Returns how many outages have begun.
    pub(super) fn begun(&self) -> u64 {
        self.lock().begun
    }

    /// Refuses a call while its node's breaker is open. After the pause, the first call passes as a probe.
    pub(super) fn admit(&self, node: impl FnOnce() -> NodeName) -> Result<(), Error> {
        if !self.in_outage() {
            return Ok(());
        }
        let node = node();
        let now = Instant::now();
        let mut state = self.lock();
        let outage = state.nodes.get_mut(&node).and_then(Option::as_mut);
        let Some(outage) = outage.filter(|outage| outage.has_open_breaker()) else {
            return Ok(());
        };
        if outage.probe.is_some_and(|probe| now >= probe) {
            outage.probe = Some(later(self.pause));
            return Ok(());
        }
        outage.fail();
        let node = node.map_or_else(String::new, |node| format!(" on {node}"));
        let failed = format!("the store failed {} times in a row{node}", self.threshold);
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("{failed}; the circuit breaker blocks calls until the next probe"),
        ))
    }

    /// Notes what a call proves, or its failure and whether it would have written.
    pub(super) fn note(
        &self,
        result: Result<Proof, (&Error, bool)>,
        node: impl FnOnce() -> NodeName,
    ) {
        match result {
            Err((error, writes)) => self.failed(error, writes, &node()),
            Ok(Proof::Nothing) => self.pass_on(node),
            Ok(proof) if self.in_outage() => self.responded(proof, &node()),
            Ok(_) => {}
        }
    }

    /// Lets another call be the probe, after a probe that no server saw.
    fn pass_on(&self, node: impl FnOnce() -> NodeName) {
        if self.in_outage()
            && let Some(outage) = self.lock().nodes.get_mut(&node()).and_then(Option::as_mut)
            && let Some(probe) = &mut outage.probe
        {
            *probe = Instant::now();
        }
    }

    fn failed(&self, error: &Error, writes: bool, node: &NodeName) {
        let mut locked = self.lock();
        let outage = locked.nodes.entry(node.clone()).or_default();
        let is_new = outage.is_none();
        let new = || CurrentOutage {
            failed: Instant::now(),
            responding_since: None,
            calls: 0,
            only_writes: true,
            has_written: false,
            failures: 0,
            probe: None,
        };
        let outage = outage.get_or_insert_with(new);
        if outage.is_gone() {
            (outage.failures, outage.probe, outage.only_writes) = (0, None, true);
        }
        outage.fail();
        outage.only_writes &= writes;
        // A call from before the breaker opened does not lengthen the pause.
        if outage.probe.is_none() {
            outage.failures += 1;
            outage.probe = (outage.failures >= self.threshold).then(|| later(self.pause));
        }
        if is_new {
            locked.begun += 1;
            self.in_outage.store(true, Ordering::Release);
            let node = node.as_deref();
            report(locked, &[Outage::Began { node, error }]);
        }
    }

    fn responded(&self, proof: Proof, node: &NodeName) {
        let mut locked = self.lock();
        if let Some(outage) = locked.nodes.get_mut(node).and_then(Option::as_mut) {
            outage.responding_since.get_or_insert_with(Instant::now);
            (outage.failures, outage.probe) = (0, None);
            outage.has_written |= proof == Proof::Writes;
        }
        let end = |(node, outage): (&NodeName, &mut Option<CurrentOutage>)| {
            Some((node.clone(), outage.take_if(|outage| outage.is_over())?))
        };
        let over: Vec<_> = locked.nodes.iter_mut().filter_map(end).collect();
        let in_outage = locked.nodes.values().any(Option::is_some);
        self.in_outage.store(in_outage, Ordering::Release);
        let ended = over.iter().map(|(node, outage)| Outage::Ended {
            node: node.as_deref(),
            calls: outage.calls,
        });
        report(locked, &ended.collect::<Vec<_>>());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

impl fmt::Debug for Nodes {
    /// Takes no lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes")
            .field("in_outage", &self.in_outage())
            .finish_non_exhaustive()
    }
}

/// Returns the instant after `duration`, or one in the distant future if there is none.
pub(super) fn later(duration: Duration) -> Instant {
    let now = Instant::now();
    // Thirty years, as tokio's timers do.
    now.checked_add(duration)
        .unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
}
