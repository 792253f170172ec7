//! A wrapper that replaces a store's clock.

use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::facts::{Facts, SettlementFacts};
use crate::log_key::LogKey;
use crate::op::{At, JointOp, Op};
use crate::settlement::Settlement;
use crate::store::{JointFacts, SyncStore, WindowStore, forward};

/// A store that takes its time from another clock: a mock clock in a test, or a shared time authority.
///
/// A call reads the clock when it is made, not when its future is polled: a future that waits in between happens at the earlier time.
///
/// Operations with a caller-supplied time keep it. The wrapped store does not know how this clock's time passes, so it may keep
/// idle keys until it is swept explicitly.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use limiter_core::{Limiter, SharedStore, WithClock, policy};
/// # use limiter_testkit::{MockClock, ReferenceStore as MemoryStore};
/// let clock = MockClock::new();
/// let store: SharedStore = Arc::new(WithClock::new(MemoryStore::new(), clock.clone()));
/// let search = Limiter::new("search", policy!("1/1h"), store.clone());
/// let login = Limiter::new("login", policy!("3/1h"), store);
/// clock.advance(Duration::from_secs(3600)); // for both limiters
/// ```
#[derive(Clone, Debug)]
pub struct WithClock<S, C> {
    store: S,
    clock: C,
}

impl<S, C: Clock> WithClock<S, C> {
    /// Returns a store that applies operations to `store` at the times of `clock`.
    #[must_use]
    pub const fn new(store: S, clock: C) -> Self {
        Self { store, clock }
    }

    fn at(&self, at: At) -> At {
        match at {
            At::StoreClock => At::Given(self.clock.now()),
            At::Given(_) => at,
        }
    }

    fn op<'a>(&self, op: &Op<'a>) -> Op<'a> {
        Op {
            at: self.at(op.at),
            ..*op
        }
    }

    fn settlement<'a>(&self, settlement: &Settlement<'a>) -> Settlement<'a> {
        Settlement {
            at: self.at(settlement.at),
            ..*settlement
        }
    }
}

#[async_trait::async_trait]
impl<S: WindowStore, C: Clock> WindowStore for WithClock<S, C> {
    forward! {
        apply(self, op: Op) -> Facts { self.store.apply(self.op(&op)) }
        settle(self, settlement: Settlement) -> SettlementFacts { self.store.settle(self.settlement(&settlement)) }
        reset(self, log: LogKey) -> bool { self.store.reset(log) }
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let now = self.at(At::StoreClock);
        let at = |op: Op<'_>| if op.at == At::StoreClock { now } else { op.at };
        let ops: Vec<_> = ops
            .iter()
            .map(|joint| JointOp {
                op: Op {
                    at: at(joint.op),
                    ..joint.op
                },
                ..*joint
            })
            .collect();
        self.store.apply_all(&ops).await
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        self.store.try_decide(self.op(&op))
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        Some(&self.clock)
    }
}

impl<S: SyncStore, C: Clock> SyncStore for WithClock<S, C> {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.store.apply_now(&self.op(op))
    }

    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        self.store.decide_now(self.op(&op))
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        self.store.settle_now(&self.settlement(settlement))
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.store.reset_now(log)
    }
}
