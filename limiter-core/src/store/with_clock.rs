//! A wrapper that replaces a store's clock.

use std::sync::Arc;

use crate::decision::Decision;
use crate::error::Error;
use crate::policy::time::Timestamp;
use crate::store::clock::Clock;
use crate::store::facts::{Facts, LogFacts, SettlementFacts};
use crate::store::joint::JointOp;
use crate::store::log_key::LogKey;
use crate::store::op::{At, Op};
use crate::store::settlement::Settlement;
use crate::store::{JointFacts, SyncStore, WindowStore};

/// A store that takes its time from another clock: a mock clock in a test, or a shared time authority.
///
/// A call reads the clock when it is made, not when its future is polled: a future that waits in between happens at the earlier time.
///
/// Operations with a caller-supplied time keep it. The wrapped store does not know how this clock's time passes, so it may keep
/// idle keys until it is swept explicitly.
///
/// `limiter-testkit` has a mock clock, and its README shows a test with both.
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

    /// Gives an operation at the store's clock this clock's time, which is returned.
    fn set(&self, at: &mut At) -> Option<Timestamp> {
        let clock = (*at == At::StoreClock).then(|| self.clock.now());
        *at = clock.map_or(*at, At::Given);
        clock
    }

    /// Gives operations this clock's time. All happen at the store's clock or all at one given time.
    fn set_all<'o>(&self, ops: &[JointOp<'o>]) -> (Vec<JointOp<'o>>, Option<Timestamp>) {
        let mut ops = ops.to_vec();
        let clock = ops.first_mut().and_then(|first| self.set(&mut first.op.at));
        if let Some(now) = clock {
            ops.iter_mut()
                .for_each(|joint| joint.op.at = At::Given(now));
        }
        (ops, clock)
    }
}

/// Counts the waits from this clock instead of the time that the store was given.
fn wait_from(clock: Option<Timestamp>, log: &mut LogFacts) {
    log.clock = clock.unwrap_or(log.clock);
}

#[deny(clippy::missing_trait_methods)]
#[async_trait::async_trait]
impl<S: WindowStore, C: Clock> WindowStore for WithClock<S, C> {
    async fn apply(&self, mut op: Op<'_>) -> Result<Facts, Error> {
        let clock = self.set(&mut op.at);
        let mut facts = self.store.apply(op).await?;
        wait_from(clock, &mut facts.log);
        Ok(facts)
    }

    async fn settle(&self, mut settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let clock = self.set(&mut settlement.at);
        let mut facts = self.store.settle(settlement).await?;
        wait_from(clock, &mut facts.log);
        Ok(facts)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.store.reset(log).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let (ops, clock) = self.set_all(ops);
        let mut all = self.store.apply_all(&ops).await?;
        for facts in all.iter_mut().flatten().flatten() {
            wait_from(clock, &mut facts.log);
        }
        Ok(all)
    }

    fn try_decide(&self, mut op: Op<'_>) -> Option<Result<Decision, Error>> {
        let clock = self.set(&mut op.at);
        let decision = self.store.try_decide(op)?;
        Some(decision.map(|decision| decision.waiting_from(clock)))
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        Some(&self.clock)
    }

    fn node(&self, log: LogKey<'_>) -> Option<Arc<str>> {
        self.store.node(log)
    }

    fn identity(&self) -> Option<usize> {
        self.store.identity()?;
        Some(self.address())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: SyncStore, C: Clock> SyncStore for WithClock<S, C> {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        let mut op = *op;
        let clock = self.set(&mut op.at);
        let mut facts = self.store.apply_now(&op);
        wait_from(clock, &mut facts.log);
        facts
    }

    fn decide_now(&self, mut op: Op<'_>) -> Result<Decision, Error> {
        let clock = self.set(&mut op.at);
        let decision = self.store.decide_now(op)?;
        Ok(decision.waiting_from(clock))
    }

    fn apply_all_now(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        let (ops, clock) = self.set_all(ops);
        let mut all = self.store.apply_all_now(&ops);
        for facts in &mut all {
            wait_from(clock, &mut facts.log);
        }
        all
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let mut settlement = *settlement;
        let clock = self.set(&mut settlement.at);
        let mut facts = self.store.settle_now(&settlement);
        wait_from(clock, &mut facts.log);
        facts
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.store.reset_now(log)
    }

    fn read_clock(&self) -> Timestamp {
        self.clock.now()
    }
}
