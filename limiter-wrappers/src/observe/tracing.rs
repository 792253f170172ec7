//! Spans and events of `tracing`.

use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{Decision, Error};
use tracing::{Instrument, Span, debug, debug_span, field, warn};

use super::store::{Operation, StoreObserver};

/// A span around each operation of an [`ObservedStore`](crate::observe::ObservedStore), and an event after it.
///
/// The span is called `limiter` and has the level debug, with the fields `limiter`, `operation` and `cost`. Decisions are debug
/// events, and failures of the store are warnings. The key is in neither unless [`with_key`](Self::with_key) says how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracing {
    key: Option<fn(&[u8]) -> String>,
}

impl Tracing {
    /// Returns the observer.
    #[must_use]
    pub const fn new() -> Self {
        Self { key: None }
    }

    /// Adds the key to the span as the field `key`, written by this function: a keyed hash, for instance. Default: no key.
    #[must_use]
    pub const fn with_key(mut self, write: fn(&[u8]) -> String) -> Self {
        self.key = Some(write);
        self
    }

    fn span(self, operation: Operation<'_>) -> Span {
        let Operation { verb, log, cost } = operation;
        let span = debug_span!("limiter", limiter = log.name.as_str(), operation = verb, cost, key = field::Empty);
        if let (Some(write), false) = (self.key, span.is_disabled()) {
            span.record("key", write(log.key));
        }
        span
    }
}

impl StoreObserver for Tracing {
    fn run<T: Send>(
        &self,
        operation: Operation<'_>,
        future: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send {
        future.instrument(self.span(operation))
    }

    fn run_at_once<T>(&self, operation: Operation<'_>, call: impl FnOnce() -> T) -> T {
        self.span(operation).in_scope(call)
    }

    fn decided(&self, op: &Op<'_>, decision: &Decision, took: Duration) {
        let verdict = (!op.is_status).then_some(decision);
        debug!(
            limiter = op.log.name.as_str(),
            operation = Operation::of_op(op).verb,
            allowed = verdict.map(Decision::allowed),
            limit = %decision.limit(),
            remaining = decision.remaining(),
            retry_after = verdict.and_then(Decision::retry_after).map(field::debug),
            ?took,
            "decided"
        );
    }

    fn changed(&self, operation: Operation<'_>, applied: bool, took: Duration) {
        debug!(limiter = operation.log.name.as_str(), operation = operation.verb, applied, ?took, "changed");
    }

    fn failed(&self, operation: Operation<'_>, error: &Error, took: Duration) {
        // The error prints no key.
        let (limiter, operation, kind) = (operation.log.name.as_str(), operation.verb, error.kind());
        if Operation::is_refused_with(error) {
            debug!(limiter, operation, %kind, %error, "refused");
        } else {
            warn!(limiter, operation, %kind, %error, ?took, "failed");
        }
    }
}
