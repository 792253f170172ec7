//! A store that refuses this server is down.

use std::sync::{Mutex, PoisonError};

use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts, async_trait,
};
use limiter_core::{Error, ErrorKind, WindowStore};

/// Turns refusals into outages, and logs why calls fail. For stores that always wait.
///
/// To a library, a wrong password is a mistake that no fallback should hide. A server that runs unattended must continue to
/// decide when somebody rotates a password.
#[derive(Debug)]
pub(super) struct Refusals<S> {
    store: S,
    /// Why the last call failed that did.
    cause: Mutex<String>,
}

impl<S> Refusals<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            cause: Mutex::default(),
        }
    }

    fn note(&self, error: Error) -> Error {
        let cause = match (error.to_string(), error.limiter_name()) {
            (text, Some(name)) => {
                text.replacen(&format!("limiter \"{}\": ", name.escape_debug()), "", 1)
            }
            (text, None) => text,
        };
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Configuration => {}
            _ => return error,
        }
        let mut last = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != cause {
            tracing::warn!("a store call failed: {cause}");
            last.clone_from(&cause);
        }
        if error.kind() == ErrorKind::Configuration {
            Error::new(ErrorKind::Unavailable, cause)
        } else {
            error
        }
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for Refusals<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.store.apply(op).await.map_err(|error| self.note(error))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.store
            .settle(settlement)
            .await
            .map_err(|error| self.note(error))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store
            .reset(log)
            .await
            .map_err(|error| self.note(error))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.store
            .apply_all(ops)
            .await
            .map_err(|error| self.note(error))
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }
}
