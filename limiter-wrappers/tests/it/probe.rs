//! A store that counts the calls of its methods, and is down on command.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts};
use limiter_core::{Clock, Decision, Error, ErrorKind, SyncStore, Timer, WindowStore};
use limiter_testkit::{MockClock, ReferenceStore};

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    store: Arc<ReferenceStore>,
    clock: MockClock,
    is_down: Arc<AtomicBool>,
    is_remote: bool,
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Probe {
    /// Returns a store that decides nothing without waiting.
    pub(crate) fn remote(is_down: bool) -> Self {
        Self { is_down: Arc::new(is_down.into()), is_remote: true, ..Self::default() }
    }

    fn note(&self, method: &'static str) {
        *self.calls.lock().unwrap().entry(method).or_default() += 1;
    }

    fn call(&self, method: &'static str) -> Result<&ReferenceStore, Error> {
        self.note(method);
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "connection refused")),
            false => Ok(&self.store),
        }
    }

    /// Returns the methods that were called and forgets them.
    pub(crate) fn called(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock().unwrap()).into_keys().collect()
    }

    /// Returns how many calls a store over a network would have made, and forgets them.
    pub(crate) fn calls(&self) -> usize {
        let called = std::mem::take(&mut *self.calls.lock().unwrap());
        ["apply", "apply_all", "reset", "settle"].iter().filter_map(|method| called.get(method)).sum()
    }
}

#[async_trait]
impl WindowStore for Probe {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.call("apply")?.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.call("settle")?.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.call("reset")?.reset_now(log))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.call("apply_all")?.apply_all(ops).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        if self.is_remote {
            return otherwise();
        }
        self.note("try_decide");
        self.store.try_decide(op, otherwise)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.note("timer");
        self.clock.timer()
    }

    fn place(&self, _: LogKey<'_>) -> LogPlace {
        self.note("place");
        LogPlace::on(Some("here".into())).in_group(Some(0)).through(&*self.store)
    }
}

impl SyncStore for Probe {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.note("apply_now");
        self.store.apply_now(op)
    }

    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        self.note("decide_now");
        self.store.decide_now(op)
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        self.store.settle_now(settlement)
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.store.reset_now(log)
    }
}
