//! Ends calls that do not return.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, SharedStore, WindowStore};

use super::sleep::within;

/// How long a call may take. The phase `Cancel` has a shorter limit.
const DEADLINE: Duration = Duration::from_secs(10);

/// The first call of a run that did not return.
pub(crate) type Hung = Arc<OnceLock<String>>;

/// A handle under test. Once a call has not returned, all later calls fail immediately.
#[derive(Debug)]
struct Watched {
    store: SharedStore,
    hung: Hung,
}

/// Watches the calls of a handle.
pub(crate) fn watched(store: SharedStore, hung: &Hung) -> SharedStore {
    Arc::new(Watched {
        store,
        hung: Arc::clone(hung),
    })
}

impl Watched {
    fn fail(&self, text: impl FnOnce() -> String) -> Error {
        Error::new(ErrorKind::Unavailable, self.hung.get_or_init(text).clone())
    }

    async fn ends<T>(
        &self,
        call: impl fmt::Debug,
        result: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.hung.get().is_some() {
            return Err(self.fail(String::new));
        }
        let result = within(DEADLINE, result).await;
        result.unwrap_or_else(|| {
            Err(self.fail(|| format!("this call did not return within {DEADLINE:?}:\n{call:?}")))
        })
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
