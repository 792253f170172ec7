//! Ends calls that do not return.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, SharedStore, WindowStore};

use super::tasks::within;

/// A handle under test. Once a call has not returned, all later calls fail immediately.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) store: SharedStore,
    /// How long a call may take.
    pub(crate) most: Duration,
    /// The first call that did not return.
    pub(crate) hung: Arc<OnceLock<String>>,
}

impl Watched {
    async fn ends<T>(
        &self,
        call: impl Debug,
        result: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.hung.get().is_none()
            && let Some(result) = within(self.most, result).await
        {
            return result;
        }
        let text = self.hung.get_or_init(|| {
            let most = self.most;
            format!(
                "this call did not return within {most:?}; on a busy machine, set a longer `Sizes::call`\n{call:?}"
            )
        });
        Err(Error::new(ErrorKind::Unavailable, text.clone()))
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
