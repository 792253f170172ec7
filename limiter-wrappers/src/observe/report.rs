//! What the wrappers around a store know about it.

use super::metrics::{BREAKER_OPEN, CARRIED_DROPPED, CARRIED_LOGS, FALLBACK_DECISIONS, Metrics};
use super::store::ObservedStore;
use crate::denial_cache::DenialCache;
use crate::outages::{CircuitBreaker, Failsafe, Fallback};

/// A store whose state is worth a metric, such as what a [`Stack`](crate::Stack) builds.
///
/// Call [`report`](Self::report) whenever metrics are collected:
///
/// ```
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # let redis = MemoryStore::new();
/// use limiter_wrappers::Stack;
/// use limiter_wrappers::observe::{Metrics, ObservedStore, Report};
///
/// let (inner, outer) = (Metrics::named("redis"), Metrics::named("stack"));
/// let stack = Stack::new(ObservedStore::new(redis, inner)).fallback(MemoryStore::new());
/// let store = ObservedStore::new(stack, outer.clone());
/// store.report(&outer);
/// ```
pub trait Report {
    /// Sets the metrics of this store, and of the stores inside it.
    fn report(&self, metrics: &Metrics);
}

impl<S: Report, O> Report for ObservedStore<S, O> {
    fn report(&self, metrics: &Metrics) {
        self.store().report(metrics);
    }
}

impl<S: Report> Report for DenialCache<S> {
    fn report(&self, metrics: &Metrics) {
        self.store().report(metrics);
    }
}

impl<S> Report for CircuitBreaker<S> {
    fn report(&self, metrics: &Metrics) {
        metrics.set_nodes(BREAKER_OPEN, &self.nodes());
    }
}

impl<S: Report> Report for Failsafe<S> {
    fn report(&self, metrics: &Metrics) {
        metrics.set_outages(&self.nodes(), self.outages().totals());
        self.store().report(metrics);
    }
}

impl<P: Report, L> Report for Fallback<P, L> {
    fn report(&self, metrics: &Metrics) {
        metrics.set_outages(&self.nodes(), self.outages().totals());
        metrics.set(CARRIED_LOGS, self.carried_logs());
        metrics.set_total(CARRIED_DROPPED, self.dropped());
        metrics.set_total(FALLBACK_DECISIONS, self.fallback_decisions());
        self.primary().report(metrics);
    }
}
