//! Ends calls that do not return.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, SharedStore, WindowStore};

use super::tasks::within;

/// How long the calls of a run take.
#[derive(Debug)]
pub(crate) struct Watch {
    /// How long a call may take. The phase `Cancel` has a shorter limit.
    most: Duration,
    /// The first call that did not return.
    hung: OnceLock<String>,
    /// The longest call that returned.
    slowest: Mutex<(Duration, String)>,
}

impl Watch {
    pub(crate) fn new(most: Duration) -> Arc<Self> {
        let hung = OnceLock::new();
        let slowest = Mutex::default();
        Arc::new(Self {
            most,
            hung,
            slowest,
        })
    }

    /// Returns a text about the call that did not return, if there is one.
    pub(crate) fn hung(&self) -> Option<String> {
        let (time, call) = &*self.slowest();
        let hung = self.hung.get()?;
        Some(format!(
            "{hung}\n\nthe slowest call that returned took {time:?}:\n{call}\n\nif the machine is busy, set a longer `Sizes::call`"
        ))
    }

    fn slowest(&self) -> MutexGuard<'_, (Duration, String)> {
        self.slowest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle under test. Once a call has not returned, all later calls fail immediately.
#[derive(Debug)]
struct Watched {
    store: SharedStore,
    watch: Arc<Watch>,
}

/// Watches the calls of a handle.
pub(crate) fn watched(store: SharedStore, watch: &Arc<Watch>) -> SharedStore {
    let watch = Arc::clone(watch);
    Arc::new(Watched { store, watch })
}

impl Watched {
    async fn ends<T>(
        &self,
        call: impl fmt::Debug,
        result: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Watch { most, hung, .. } = &*self.watch;
        let fail = |text: &String| Err(Error::new(ErrorKind::Unavailable, text.clone()));
        if let Some(text) = hung.get() {
            return fail(text);
        }
        let start = Instant::now();
        let Some(result) = within(*most, result).await else {
            let text = || format!("this call did not return within {most:?}:\n{call:?}");
            return fail(hung.get_or_init(text));
        };
        let time = start.elapsed();
        let mut slowest = self.watch.slowest();
        if time > slowest.0 {
            *slowest = (time, format!("{call:?}"));
        }
        result
    }
}

#[async_trait]
impl WindowStore for Watched {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.ends(op, self.store.apply(op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.ends(settlement, self.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.ends(log, self.store.reset(log)).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.ends(ops, self.store.apply_all(ops)).await
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        self.store.try_decide(op)
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }
}
