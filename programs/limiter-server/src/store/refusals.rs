//! A store that refuses this server's decisions is down.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts, async_trait,
};
use limiter_core::{Error, ErrorKind, WindowStore};

/// How many causes are not logged again.
const KNOWN_CAUSES: usize = 16;

/// How long a node counts as refusing without another decision. Later, its logs are elsewhere.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// The nodes that have refused their latest decision.
#[derive(Debug, Default)]
pub(super) struct Refusing {
    is_any: AtomicBool,
    nodes: Mutex<HashMap<Option<Arc<str>>, Instant>>,
}

impl Refusing {
    pub(super) fn is_any(&self) -> bool {
        let lasts = |refused: &Instant| refused.elapsed() < GONE_AFTER;
        let nodes = || self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_any.load(Relaxed) && nodes().values().any(lasts)
    }

    fn note(&self, is_refused: bool, node: impl FnOnce() -> Option<Arc<str>>) {
        if !is_refused && !self.is_any.load(Relaxed) {
            return;
        }
        let node = node();
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if is_refused {
            nodes.insert(node, Instant::now());
        } else {
            // A Cluster to which no connection was made had no nodes.
            nodes.retain(|refusing, refused| {
                refusing.is_some() && *refusing != node && refused.elapsed() < GONE_AFTER
            });
        }
        self.is_any.store(!nodes.is_empty(), Relaxed);
    }
}

/// Turns refusals into outages, and logs why calls fail. For stores that always wait.
///
/// To a library, a wrong password is a mistake that no fallback should hide. A server that runs unattended must continue to
/// decide when somebody rotates a password, unless it would admit everything.
#[derive(Debug)]
pub(super) struct Refusals<S> {
    store: S,
    /// Whether refusals stay errors, because the choice for outages is to admit.
    fails_open: bool,
    refusing: Arc<Refusing>,
    /// The latest different causes of failures. The nodes of a Cluster alternate.
    causes: Mutex<VecDeque<String>>,
}

impl<S> Refusals<S> {
    pub(super) fn new(store: S, fails_open: bool, refusing: Arc<Refusing>) -> Self {
        Self {
            store,
            fails_open,
            refusing,
            causes: Mutex::default(),
        }
    }

    /// Notes whether the store decides. Returns a refusal as an outage, unless that would admit.
    fn decided<T>(&self, log: Option<LogKey<'_>>, result: Result<T, Error>) -> Result<T, Error>
    where
        S: WindowStore,
    {
        let is_refusal = |error: &Error| error.kind() == ErrorKind::Configuration;
        let is_refused = result.as_ref().is_err_and(is_refusal);
        self.refusing.note(is_refused, || self.store.node(log?));
        result.map_err(|error| match self.note(error) {
            error if is_refused && !self.fails_open => {
                Error::new(ErrorKind::Unavailable, cause(&error))
            }
            error => error,
        })
    }

    /// Logs why a call failed. A refused refund stops no decision.
    fn note(&self, error: Error) -> Error {
        let is_refusal = error.kind() == ErrorKind::Configuration;
        if !is_refusal && !error.is_retryable() {
            return error;
        }
        let cause = cause(&error);
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        if !causes.contains(&cause) {
            if is_refusal {
                tracing::error!("refused by the store, not an outage: {cause}");
            } else {
                tracing::warn!("a store call failed: {cause}");
            }
            causes.truncate(KNOWN_CAUSES - 1);
            causes.push_front(cause);
        }
        error
    }
}

/// Returns the text of an error without the limiter's name.
fn cause(error: &Error) -> String {
    let name = error.limiter_name().unwrap_or_default().escape_debug();
    let text = error.to_string();
    text.replacen(&format!("limiter \"{name}\": "), "", 1)
}

#[async_trait]
impl<S: WindowStore> WindowStore for Refusals<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.decided(Some(op.log), self.store.apply(op).await)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let facts = self.store.settle(settlement).await;
        facts.map_err(|error| self.note(error))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let existed = self.store.reset(log).await;
        existed.map_err(|error| self.note(error))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        match self.store.apply_all(ops).await {
            // The operations follow one by one.
            Ok(None) => Ok(None),
            decided => self.decided(ops.first().map(|joint| joint.op.log), decided),
        }
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }
}
