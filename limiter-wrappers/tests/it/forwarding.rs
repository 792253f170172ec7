//! Wrappers forward the provided methods of a store, so that nothing in front of it makes it slower.

use std::sync::Arc;

use limiter_core::store::{Op, attempt};
use limiter_core::{SyncStore, WindowStore, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};
use limiter_wrappers::Stack;
use limiter_wrappers::observe::ObservedStore;
use testbed::Faulty;
use tokio::time::Instant;

use crate::script::Virtual;

/// Returns a store that overrides every provided method.
fn store() -> Faulty<WithClock<ReferenceStore, MockClock>> {
    let store = Faulty::new(WithClock::new(ReferenceStore::new(), MockClock::new()));
    store.decide_immediately(true);
    store
}

#[tokio::test]
async fn every_wrapper_forwards_try_decide_apply_all_the_timer_and_the_place() {
    let wrappers: [(&str, Box<dyn WindowStore>); 3] = [
        ("Arc", Box::new(Arc::new(store()))),
        (
            "ObservedStore",
            Box::new(ObservedStore::new(store(), "default")),
        ),
        (
            "Guarded",
            Box::new(Stack::new(store()).fallback(ReferenceStore::new())),
        ),
    ];
    let policy = policy!("9/1h");
    for (name, wrapper) in wrappers {
        let op = Op::acquire("key@here", &policy);
        // A guarded store needs a future, for its timeout.
        assert_eq!(attempt(&*wrapper, op).is_some(), name != "Guarded");
        assert!(
            wrapper.timer().is_some() && wrapper.place(op.log).node.as_deref() == Some("here"),
            "{name}"
        );
        let ops = [Op::acquire("one", &policy).into(), op.into()];
        assert_eq!(
            wrapper.apply_all(&ops).await.unwrap().unwrap().len(),
            2,
            "{name}"
        );
    }
    // The wrapped store's timer sleeps by another clock than the one in front of it, which has none here.
    let with_clock = WithClock::new(store(), Virtual(Instant::now(), 0));
    let op = Op::acquire("key@here", &policy);
    assert!(attempt(&with_clock, op).is_some() && with_clock.timer().is_none());
    assert_eq!(with_clock.place(op.log).node.as_deref(), Some("here"));
}

#[test]
fn every_synchronous_wrapper_forwards_decide_now() {
    let store = store();
    let wrappers: [(&str, Box<dyn SyncStore>); 2] = [
        ("Arc", Box::new(Arc::new(store.clone()))),
        (
            "WithClock",
            Box::new(WithClock::new(store.clone(), MockClock::new())),
        ),
    ];
    let policy = policy!("9/1h");
    for (calls, (name, wrapper)) in (1..).zip(wrappers) {
        assert!(
            wrapper
                .decide_now(Op::acquire(name, &policy))
                .unwrap()
                .allowed()
        );
        assert_eq!(store.calls_to("decide_now"), calls, "{name}");
    }
}
