//! Wrappers forward the provided methods of a store, so that nothing in front of it makes it slower.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Clock, Decision, Error, SyncStore, Timestamp, WindowStore, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};
use limiter_wrappers::Guarded;
use limiter_wrappers::observe::ObservedStore;
use testbed::Faulty;

/// Returns a store that overrides every provided method.
fn store() -> Faulty<WithClock<ReferenceStore, MockClock>> {
    let store = Faulty::new(WithClock::new(ReferenceStore::new(), MockClock::new()));
    store.decide_immediately(true);
    store
}

#[tokio::test]
async fn every_wrapper_forwards_try_decide_apply_all_the_clock_and_the_node() {
    let wrappers: [(&str, Box<dyn WindowStore>); 3] = [
        ("Arc", Box::new(Arc::new(store()))),
        (
            "ObservedStore",
            Box::new(ObservedStore::new(store(), "default")),
        ),
        (
            "Guarded",
            Box::new(Guarded::builder(store()).fallback(ReferenceStore::new())),
        ),
    ];
    let policy = policy!("9/1h");
    for (name, wrapper) in wrappers {
        let op = Op::acquire("key@here", &policy);
        // A guarded store needs a future, for its timeout.
        assert_eq!(wrapper.try_decide(op).is_some(), name != "Guarded");
        assert!(
            wrapper.clock().is_some() && wrapper.node(op.log).as_deref() == Some("here"),
            "{name}"
        );
        let ops = [Op::acquire("one", &policy).into(), op.into()];
        assert_eq!(
            wrapper.apply_all(&ops).await.unwrap().unwrap().len(),
            2,
            "{name}"
        );
    }
    // The clock in front replaces the wrapped store's.
    let clock = MockClock::new();
    clock.advance(Duration::from_secs(9));
    let with_clock = WithClock::new(store(), clock.clone());
    let op = Op::acquire("key@here", &policy);
    assert_eq!(
        with_clock.try_decide(op).unwrap().unwrap().at(),
        clock.now()
    );
    assert_eq!(with_clock.clock().unwrap().now(), clock.now());
    assert_eq!(with_clock.node(op.log).as_deref(), Some("here"));
}

/// A synchronous store whose only method is the provided one.
#[derive(Debug)]
struct DecidesNow(ReferenceStore);

#[async_trait]
impl WindowStore for DecidesNow {
    async fn apply(&self, _: Op<'_>) -> Result<Facts, Error> {
        unreachable!()
    }

    async fn settle(&self, _: Settlement<'_>) -> Result<SettlementFacts, Error> {
        unreachable!()
    }

    async fn reset(&self, _: LogKey<'_>) -> Result<bool, Error> {
        unreachable!()
    }
}

impl SyncStore for DecidesNow {
    fn apply_now(&self, _: &Op<'_>) -> Facts {
        unreachable!()
    }

    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        self.0.decide_now(op)
    }

    fn apply_all_now(&self, _: &[JointOp<'_>]) -> Vec<Facts> {
        unreachable!()
    }

    fn settle_now(&self, _: &Settlement<'_>) -> SettlementFacts {
        unreachable!()
    }

    fn reset_now(&self, _: LogKey<'_>) -> bool {
        unreachable!()
    }

    fn read_clock(&self) -> Timestamp {
        unreachable!()
    }
}

#[test]
fn every_synchronous_wrapper_forwards_decide_now() {
    let store = || DecidesNow(ReferenceStore::new());
    let wrappers: [Box<dyn SyncStore>; 2] = [
        Box::new(Arc::new(store())),
        Box::new(WithClock::new(store(), MockClock::new())),
    ];
    for wrapper in wrappers {
        let policy = policy!("9/1h");
        let decision = wrapper.decide_now(Op::acquire("key", &policy));
        assert!(decision.unwrap().is_allowed());
    }
}
