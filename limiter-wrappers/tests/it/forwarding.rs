//! Wrappers forward the provided methods of a store, so that nothing in front of it makes it slower.

use std::sync::Arc;

use limiter_core::store::{Op, attempt};
use limiter_core::{SyncStore, WindowStore, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};
use limiter_wrappers::Stack;
use limiter_wrappers::observe::ObservedStore;

use crate::probe::Probe;

#[tokio::test]
async fn every_wrapper_forwards_try_decide_apply_all_the_timer_and_the_place() {
    let probe = Probe::default();
    let store = || probe.clone();
    let wrappers: [(&str, Box<dyn WindowStore>); 3] = [
        ("Arc", Box::new(Arc::new(store()))),
        ("ObservedStore", Box::new(ObservedStore::new(store(), "default"))),
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
fn every_synchronous_wrapper_forwards_decide_now() {
    let probe = Probe::default();
    let wrappers: [(&str, Box<dyn SyncStore>); 2] = [
        ("Arc", Box::new(Arc::new(probe.clone()))),
        ("WithClock", Box::new(WithClock::new(probe.clone(), MockClock::new()))),
    ];
    let policy = policy!("9/1h");
    for (name, wrapper) in wrappers {
        let op = Op::acquire(name, &policy);
        assert!(wrapper.decide_now(op).unwrap().allowed());
        assert_eq!(probe.called(), ["decide_now"], "{name}");
    }
}
