//! Wrappers forward the provided methods of a store, so that nothing in front of it makes it slower.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts, attempt,
};
use limiter_core::{BoxFuture, Decision, Error, SyncStore, Timer, WindowStore, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};
use limiter_wrappers::Stack;
use limiter_wrappers::observe::{Metrics, ObservedStore};

/// A store that counts the calls of its methods.
#[derive(Clone, Debug, Default)]
struct Probe {
    store: Arc<ReferenceStore>,
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Probe {
    fn note(&self, method: &'static str) {
        *self.calls.lock().unwrap().entry(method).or_default() += 1;
    }

    /// Returns the methods that were called, and forgets them.
    fn called(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock().unwrap()).into_keys().collect()
    }
}

impl Timer for Probe {
    fn sleep(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[async_trait]
impl WindowStore for Probe {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.note("apply");
        Ok(self.store.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.note("settle");
        Ok(self.store.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.note("reset");
        Ok(self.store.reset_now(log))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.note("apply_all");
        self.store.apply_all(ops).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        self.note("try_decide");
        self.store.try_decide(op, otherwise)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.note("timer");
        Some(self)
    }

    fn place(&self, _: LogKey<'_>) -> LogPlace {
        self.note("place");
        LogPlace::on(Some("here".into()))
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

    fn prefetch(&self, logs: &mut dyn Iterator<Item = LogKey<'_>>) {
        self.note("prefetch");
        self.store.prefetch(logs);
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        self.store.settle_now(settlement)
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.store.reset_now(log)
    }
}

#[tokio::test]
async fn every_wrapper_forwards_try_decide_apply_all_the_timer_and_the_place() {
    let probe = Probe::default();
    let store = || probe.clone();
    let wrappers: [(&str, Box<dyn WindowStore>); 3] = [
        ("Arc", Box::new(Arc::new(store()))),
        ("ObservedStore", Box::new(ObservedStore::new(store(), Metrics::new()))),
        ("Guarded", Box::new(Stack::new(store()).fallback(ReferenceStore::new()))),
    ];
    let policy = policy!("9/1h");
    for (name, wrapper) in wrappers {
        assert!(attempt(&*wrapper, Op::acquire(name, &policy)).unwrap().unwrap().allowed(), "{name}");
        assert!(wrapper.timer().is_some() && wrapper.place(Op::acquire(name, &policy).log).node.is_some(), "{name}");
        let ops = [Op::acquire("one", &policy).into(), Op::acquire(name, &policy).into()];
        assert_eq!(wrapper.apply_all(&ops).await.unwrap().unwrap().len(), 2, "{name}");
        assert_eq!(probe.called(), ["apply_all", "place", "timer", "try_decide"], "{name}");
    }
    // The wrapped store's timer sleeps by another clock than the one in front of it.
    let with_clock = WithClock::new(store(), MockClock::new());
    let op = Op::acquire("WithClock", &policy);
    assert!(attempt(&with_clock, op).is_some() && with_clock.timer().is_some());
    assert!(with_clock.place(op.log).node.is_some());
    assert_eq!(probe.called(), ["place", "try_decide"]);
}

#[test]
fn every_synchronous_wrapper_forwards_decide_now_and_prefetch() {
    let probe = Probe::default();
    let wrappers: [(&str, Box<dyn SyncStore>); 3] = [
        ("Arc", Box::new(Arc::new(probe.clone()))),
        ("WithClock", Box::new(WithClock::new(probe.clone(), MockClock::new()))),
        ("ObservedStore", Box::new(ObservedStore::new(probe.clone(), Metrics::new()))),
    ];
    let policy = policy!("9/1h");
    for (name, wrapper) in wrappers {
        let op = Op::acquire(name, &policy);
        wrapper.prefetch(&mut [op.log].into_iter());
        assert!(wrapper.decide_now(op).unwrap().allowed());
        assert_eq!(probe.called(), ["decide_now", "prefetch"], "{name}");
    }
}
