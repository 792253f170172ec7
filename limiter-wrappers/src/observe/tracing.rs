//! Spans and events of `tracing`.

use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{Decision, Error};
use tracing::{Instrument, Span, debug, debug_span, field, warn};

use super::store::{Operation, StoreObserver};

/// A span around each operation of an [`ObservedStore`](crate::observe::ObservedStore), and an event after it.
///
/// The span is called `limiter` and has the level debug, with the fields `limiter`, `operation` and `cost`. Decisions are debug
/// events, and failures of the store are warnings. The key is in neither.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Tracing;

impl Tracing {
    /// Returns the observer.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

fn span(operation: Operation<'_>) -> Span {
    debug_span!("limiter", limiter = operation.log.name.as_str(), operation = operation.verb, cost = operation.cost)
}

impl StoreObserver for Tracing {
    fn run<T: Send>(
        &self,
        operation: Operation<'_>,
        future: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send {
        future.instrument(span(operation))
    }

    fn run_at_once<T>(&self, operation: Operation<'_>, call: impl FnOnce() -> T) -> T {
        span(operation).in_scope(call)
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
