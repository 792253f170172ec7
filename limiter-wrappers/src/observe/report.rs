//! What the wrappers around a store know about it.

use super::metrics::Metrics;
use super::store::ObservedStore;
use crate::denial_cache::DenialCache;
use crate::outages::CircuitBreaker;

/// A store with a state beside its operations, such as what a [`Stack`](crate::Stack) builds. Call it whenever metrics are collected:
///
/// ```
/// # use limiter_testkit::OracleStore as RedisStore;
/// use limiter_wrappers::Stack;
/// use limiter_wrappers::observe::{Metrics, ObservedStore, Report};
///
/// let metrics = Metrics::named("redis");
/// let store = ObservedStore::new(Stack::new(RedisStore::new()).or_error(), metrics);
/// store.report(&metrics);
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
        metrics.report_breaker(self.is_open());
    }
}
