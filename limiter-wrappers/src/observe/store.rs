//! A wrapper around a store that reports each operation.

use std::fmt::Debug;
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, LogPlace, Mode, Op, Otherwise, Settlement, SettlementFacts, attempt, decide,
};
use limiter_core::{Decision, Error, ErrorKind, SyncStore, Timer, WindowStore};

/// An operation on a store, without its key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Operation<'a> {
    /// `acquire`, `peek`, `status`, `record`, `settle` or `reset`.
    pub verb: &'static str,
    /// The log. It contains the key, which must not become a label.
    pub log: LogKey<'a>,
    /// The cost; for a settlement the new one, for a reset 0.
    pub cost: u64,
}

impl<'a> Operation<'a> {
    pub(super) fn of_op(op: &Op<'a>) -> Self {
        let verb = match op.mode {
            Mode::Acquire => "acquire",
            Mode::Peek if op.is_status => "status",
            Mode::Peek => "peek",
            Mode::Record => "record",
        };
        Self { verb, log: op.log, cost: op.cost }
    }

    const fn of_settlement(settlement: &Settlement<'a>) -> Self {
        Self { verb: "settle", log: settlement.log, cost: settlement.cost }
    }

    const fn of_reset(log: LogKey<'a>) -> Self {
        Self { verb: "reset", log, cost: 0 }
    }

    /// Returns whether the error says that the operation made no sense, which is no failure of the store.
    #[must_use]
    pub fn is_refused_with(error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::InvalidCost | ErrorKind::CostExceedsLimit)
    }
}

/// Receives a report of each operation of an [`ObservedStore`]. All methods have default implementations, which do nothing.
pub trait StoreObserver: Debug + Send + Sync + 'static {
    /// Runs an operation that needs a future. Override it to put a span around the operation.
    fn run<T: Send>(&self, _: Operation<'_>, future: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        future
    }

    /// Runs an operation that may answer immediately. If it does not, [`run`](Self::run) follows.
    fn run_at_once<T>(&self, _: Operation<'_>, operation: impl FnOnce() -> T) -> T {
        operation()
    }

    /// Is called after each decision. That of a [status](Op::is_status) admits and denies nothing.
    fn decided(&self, op: &Op<'_>, decision: &Decision, took: Duration) {
        let _ = (op, decision, took);
    }

    /// Is called after each settlement, refund and reset. `applied` says whether it changed something.
    fn changed(&self, operation: Operation<'_>, applied: bool, took: Duration) {
        let _ = (operation, applied, took);
    }

    /// Is called after each error.
    fn failed(&self, operation: Operation<'_>, error: &Error, took: Duration) {
        let _ = (operation, error, took);
    }
}

/// A store that reports each operation to a [`StoreObserver`]. It changes no answer. For two observers, nest two of them.
///
/// It does not report an operation that is dropped before it ends, for example by a `Timeout` around it.
#[derive(Clone, Debug)]
pub struct ObservedStore<S, O> {
    store: S,
    observer: O,
}

impl<S, O> ObservedStore<S, O> {
    /// Puts `observer` in front of `store`.
    #[must_use]
    pub const fn new(store: S, observer: O) -> Self {
        Self { store, observer }
    }

    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Returns the observer.
    #[must_use]
    pub const fn observer(&self) -> &O {
        &self.observer
    }
}

impl<S, O: StoreObserver> ObservedStore<S, O> {
    fn report_op(&self, op: &Op<'_>, decision: &Result<Decision, Error>, began: Instant) {
        match decision {
            Ok(decision) => self.observer.decided(op, decision, began.elapsed()),
            Err(error) => self.observer.failed(Operation::of_op(op), error, began.elapsed()),
        }
    }

    fn report_change(&self, operation: Operation<'_>, applied: Result<bool, &Error>, began: Instant) {
        match applied {
            Ok(applied) => self.observer.changed(operation, applied, began.elapsed()),
            Err(error) => self.observer.failed(operation, error, began.elapsed()),
        }
    }
}

#[async_trait]
impl<S: WindowStore, O: StoreObserver> WindowStore for ObservedStore<S, O> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let began = Instant::now();
        let facts = self.observer.run(Operation::of_op(&op), self.store.apply(op)).await;
        match &facts {
            // The limiter verifies the facts too, and returns this error.
            Ok(facts) => self.report_op(&op, &facts.verify(&op).map(|()| decide(&op, facts.clone())), began),
            Err(error) => self.observer.failed(Operation::of_op(&op), error, began.elapsed()),
        }
        facts
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let (began, operation) = (Instant::now(), Operation::of_settlement(&settlement));
        let facts = self.observer.run(operation, self.store.settle(settlement)).await;
        self.report_change(operation, facts.as_ref().map(|facts| facts.applied), began);
        facts
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let (began, operation) = (Instant::now(), Operation::of_reset(log));
        let existed = self.observer.run(operation, self.store.reset(log)).await;
        self.report_change(operation, existed.as_ref().copied(), began);
        existed
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let (began, Some(first)) = (Instant::now(), ops.first()) else { return self.store.apply_all(ops).await };
        let results = self.observer.run(Operation::of_op(&first.op), self.store.apply_all(ops)).await;
        let fails = |op, error: &Error| self.observer.failed(Operation::of_op(op), error, began.elapsed());
        match &results {
            Ok(None) => {}
            Ok(Some(results)) => {
                for (joint, result) in ops.iter().zip(results) {
                    match result {
                        Ok(facts) => {
                            let op = joint.answered_by(facts);
                            self.report_op(&op, &facts.verify(&op).map(|()| decide(&op, facts.clone())), began);
                        }
                        Err(error) => fails(&joint.op, error),
                    }
                }
            }
            Err(error) => ops.iter().for_each(|joint| fails(&joint.op, error)),
        }
        results
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || {
            let began = Instant::now();
            let decision = self.observer.run_at_once(Operation::of_op(&op), || attempt(&self.store, op))?;
            self.report_op(&op, &decision, began);
            Some(decision)
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}

impl<S: SyncStore, O: StoreObserver> SyncStore for ObservedStore<S, O> {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        let began = Instant::now();
        let facts = self.observer.run_at_once(Operation::of_op(op), || self.store.apply_now(op));
        self.report_op(op, &Ok(decide(op, facts.clone())), began);
        facts
    }

    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        let began = Instant::now();
        let decision = self.observer.run_at_once(Operation::of_op(&op), || self.store.decide_now(op));
        self.report_op(&op, &decision, began);
        decision
    }

    fn prefetch(&self, logs: &mut dyn Iterator<Item = LogKey<'_>>) {
        self.store.prefetch(logs);
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let (began, operation) = (Instant::now(), Operation::of_settlement(settlement));
        let facts = self.observer.run_at_once(operation, || self.store.settle_now(settlement));
        self.report_change(operation, Ok(facts.applied), began);
        facts
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        let (began, operation) = (Instant::now(), Operation::of_reset(log));
        let existed = self.observer.run_at_once(operation, || self.store.reset_now(log));
        self.report_change(operation, Ok(existed), began);
        existed
    }
}
