//! A store that refuses this server is down.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts, async_trait,
};
use limiter_core::{Decision, Error, ErrorKind, WindowStore};

/// Turns refusals into outages, and logs why calls fail.
///
/// To a library, a wrong password is a mistake that no fallback should hide. A server that runs unattended must go on deciding
/// when somebody rotates a password.
///
/// After a refusal, the store is opened again, at most once a second: a connection that was refused once stays refused.
pub(super) struct Refusals<S> {
    store: ArcSwap<S>,
    open: Box<dyn Fn() -> Result<S, Error> + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    /// Why the last call failed that did.
    cause: String,
    opened: Instant,
}

/// How long a store stays open at least.
const LASTS: Duration = Duration::from_secs(1);

impl<S> Refusals<S> {
    /// Returns the store that `open` opens.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) fn new(open: impl Fn() -> Result<S, Error> + Send + Sync + 'static) -> Result<Self, Error> {
        let state = State { cause: String::new(), opened: Instant::now() };
        Ok(Self { store: ArcSwap::from_pointee(open()?), open: Box::new(open), state: Mutex::new(state) })
    }

    fn note(&self, error: Error) -> Error {
        let cause = match (error.to_string(), error.limiter_name()) {
            (text, Some(name)) => text.replacen(&format!("limiter \"{}\": ", name.escape_debug()), "", 1),
            (text, None) => text,
        };
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Configuration => {}
            _ => return error,
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.cause != cause {
            tracing::warn!("the store fails: {cause}");
            state.cause.clone_from(&cause);
        }
        if error.kind() != ErrorKind::Configuration {
            return error;
        }
        if state.opened.elapsed() > LASTS
            && let Ok(store) = (self.open)()
        {
            self.store.store(Arc::new(store));
            state.opened = Instant::now();
        }
        Error::new(ErrorKind::Unavailable, cause)
    }
}

impl<S> fmt::Debug for Refusals<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").finish_non_exhaustive()
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for Refusals<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.store.load_full().apply(op).await.map_err(|error| self.note(error))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.store.load_full().settle(settlement).await.map_err(|error| self.note(error))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store.load_full().reset(log).await.map_err(|error| self.note(error))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.store.load_full().apply_all(ops).await.map_err(|error| self.note(error))
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        self.store.load().try_decide(op, otherwise).map_err(|error| self.note(error))
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.load().place(log)
    }
}
