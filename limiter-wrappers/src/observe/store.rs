//! A wrapper around a store that counts and times each operation.

use std::task::Poll;
use std::time::Instant;

use async_trait::async_trait;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts, attempt, decide,
};
use limiter_core::{Decision, Error, Timer, WindowStore};

use super::metrics::{Metrics, verb};

/// A store that counts and times each operation in [`Metrics`]. It changes no answer.
///
/// It does not count an operation that is dropped before it ends, for example by a timeout around it.
#[derive(Clone, Debug)]
pub struct ObservedStore<S> {
    store: S,
    metrics: Metrics,
}

impl<S> ObservedStore<S> {
    /// Returns `store` with its metrics.
    #[must_use]
    pub const fn new(store: S, metrics: Metrics) -> Self {
        Self { store, metrics }
    }

    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    fn note(&self, op: &Op<'_>, decision: Result<&Decision, &Error>, began: Instant) {
        match decision {
            Ok(decision) => self.metrics.decided(op, decision, began.elapsed()),
            Err(error) => self.metrics.failed(op.log.name, verb(op), error, began.elapsed()),
        }
    }

    fn note_facts(&self, op: &Op<'_>, facts: Result<&Facts, &Error>, began: Instant) {
        match facts {
            // The limiter verifies the facts too, and returns this error.
            Ok(facts) => self.note(op, facts.verify(op).map(|()| decide(op, facts.clone())).as_ref(), began),
            Err(error) => self.note(op, Err(error), began),
        }
    }

    fn note_change<T>(&self, log: LogKey<'_>, verb: &'static str, answer: &Result<T, Error>, began: Instant) {
        match answer {
            Ok(_) => self.metrics.took(log.name, verb, began.elapsed()),
            Err(error) => self.metrics.failed(log.name, verb, error, began.elapsed()),
        }
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for ObservedStore<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let began = Instant::now();
        let facts = self.store.apply(op).await;
        self.note_facts(&op, facts.as_ref(), began);
        facts
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let began = Instant::now();
        let facts = self.store.settle(settlement).await;
        self.note_change(settlement.log, "settle", &facts, began);
        facts
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let began = Instant::now();
        let existed = self.store.reset(log).await;
        self.note_change(log, "reset", &existed, began);
        existed
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let began = Instant::now();
        let results = self.store.apply_all(ops).await;
        match &results {
            Ok(results) => {
                for (joint, facts) in ops.iter().zip(results.iter().flatten()) {
                    let op = facts.as_ref().map_or(joint.op, |facts| joint.answered_by(facts));
                    self.note_facts(&op, facts.as_ref(), began);
                }
            }
            Err(error) => ops.iter().for_each(|joint| self.note_facts(&joint.op, Err(error), began)),
        }
        results
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let began = Instant::now();
        let Some(decision) = attempt(&self.store, op) else { return otherwise() };
        self.note(&op, decision.as_ref(), began);
        Poll::Ready(decision)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}
