//! A bound on the time of every call.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, Timer, WindowStore};

/// Bounds the time of every call to a store.
///
/// A call that takes longer fails with [`ErrorKind::Timeout`]. An operation carries the [timeout](Op::timeout) to the store, and a
/// `RedisStore` appends nothing after it. Other calls may still take effect later. To count an operation once, repeat it with the
/// same idempotency key. Calls need a tokio runtime, except those that the store answers without waiting.
///
/// # Cancel safety
/// As the store's. A call that times out is dropped.
#[derive(Clone, Debug)]
pub struct Timeout<S> {
    store: S,
    timeout: Duration,
}

impl<S> Timeout<S> {
    /// Returns `store` with every call bounded by `timeout`.
    #[must_use]
    pub const fn new(store: S, timeout: Duration) -> Self {
        Self { store, timeout }
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }
}

async fn bounded<T>(
    timeout: Duration,
    log: Option<LogKey<'_>>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let about = |error: Error| log.into_iter().fold(error, Error::with_log);
    let mut call = pin!(call);
    // Outside a runtime, where a drop may refund, there is no timer. A store that does not wait needs none.
    if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
        return answer;
    }
    if tokio::runtime::Handle::try_current().is_err() {
        let text = "a store that has to wait needs a tokio runtime for its timeout";
        return Err(about(Error::new(ErrorKind::Configuration, text)));
    }
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| {
        let text = format!("the store did not answer within {timeout:?}");
        Err(about(Error::new(ErrorKind::Timeout, text)))
    })
}

#[async_trait]
impl<S: WindowStore> WindowStore for Timeout<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let op = op.with_timeout(self.timeout);
        bounded(op.timeout.unwrap_or(self.timeout), Some(op.log), self.store.apply(op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        bounded(self.timeout, Some(settlement.log), self.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        bounded(self.timeout, Some(log), self.store.reset(log)).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let ops: Vec<_> =
            ops.iter().map(|joint| JointOp { op: joint.op.with_timeout(self.timeout), ..*joint }).collect();
        let timeout = ops.iter().filter_map(|joint| joint.op.timeout).min();
        bounded(timeout.unwrap_or(self.timeout), None, self.store.apply_all(&ops)).await
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        self.store.try_decide(op, otherwise)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}
