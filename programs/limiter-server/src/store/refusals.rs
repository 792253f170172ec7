//! A store that refuses this server's decisions is down.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts, async_trait,
};
use limiter_core::{Error, ErrorKind, WindowStore};

/// How many causes are not logged again.
const KNOWN_CAUSES: usize = 16;

/// Turns refusals into outages, and logs why calls fail. For stores that always wait.
///
/// To a library, a wrong password is a mistake that no fallback should hide. A server that runs unattended must continue to
/// decide when somebody rotates a password.
#[derive(Debug)]
pub(super) struct Refusals<S> {
    store: S,
    /// The latest different causes of failures. The nodes of a Cluster alternate.
    causes: Mutex<VecDeque<String>>,
}

impl<S> Refusals<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            causes: Mutex::default(),
        }
    }

    /// Logs why a call failed, and returns the error, as an outage if `is_decision`: a refused refund stops no decision.
    fn note(&self, error: Error, is_decision: bool) -> Error {
        let is_refusal = error.kind() == ErrorKind::Configuration;
        let cause = match (error.to_string(), error.limiter_name()) {
            (text, Some(name)) => {
                text.replacen(&format!("limiter \"{}\": ", name.escape_debug()), "", 1)
            }
            (text, None) => text,
        };
        if !is_refusal && !error.is_retryable() {
            return error;
        }
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        if !causes.contains(&cause) {
            if is_refusal {
                tracing::error!("refused by the store, not an outage: {cause}");
            } else {
                tracing::warn!("a store call failed: {cause}");
            }
            causes.truncate(KNOWN_CAUSES - 1);
            causes.push_front(cause.clone());
        }
        if is_refusal && is_decision {
            Error::new(ErrorKind::Unavailable, cause)
        } else {
            error
        }
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for Refusals<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let facts = self.store.apply(op).await;
        facts.map_err(|error| self.note(error, true))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let facts = self.store.settle(settlement).await;
        facts.map_err(|error| self.note(error, false))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let existed = self.store.reset(log).await;
        existed.map_err(|error| self.note(error, false))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let facts = self.store.apply_all(ops).await;
        facts.map_err(|error| self.note(error, true))
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }
}
