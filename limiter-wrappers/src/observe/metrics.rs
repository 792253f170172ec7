//! Metrics through the `metrics` facade.

use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{Decision, Error, ErrorKind};

use super::store::{ObservedStore, Operation, StoreObserver};

/// Counts and times the operations of an [`ObservedStore`] through the `metrics` facade.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `limiter_decisions_total` | counter | `limiter`, `policy`, `limit`, `operation`, `outcome` (`allowed`, `denied`) |
/// | `limiter_near_limit_total` | counter | `limiter`, `policy`, `limit`: admitted acquires that leave little |
/// | `limiter_store_duration_seconds` | histogram | `limiter`, `operation` |
/// | `limiter_store_errors_total` | counter | `limiter`, `operation`, `kind` |
/// | `limiter_keys` | gauge | none: see [`report_keys`](ObservedStore::report_keys) |
///
/// `limit` is the binding limit, `5/10s`. `policy` is the policy's name, or all its limits if it has none: give names to policies
/// that come from a database. Clients cannot choose a label.
#[derive(Clone, Copy, Debug)]
pub struct Metrics {
    near_limit_percent: u8,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { near_limit_percent: 80 }
    }
}

impl Metrics {
    /// Returns the observer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the usage, in percent of the limit, from which an admitted acquire counts as near the limit. Default: 80.
    #[must_use]
    pub const fn near_limit_percent(mut self, percent: u8) -> Self {
        self.near_limit_percent = percent;
        self
    }

    fn is_near_limit(self, decision: &Decision) -> bool {
        u128::from(decision.used()) * 100 >= u128::from(decision.limit().max()) * u128::from(self.near_limit_percent)
    }
}

impl StoreObserver for Metrics {
    fn decided(&self, op: &Op<'_>, decision: &Decision, took: Duration) {
        let limiter = op.log.name.as_str();
        let operation = verb(op);
        let policy = op.policy.name().map_or_else(|| op.policy.to_string(), str::to_owned);
        let limit = decision.limit().to_string();
        if decision.allowed() && operation == "acquire" && self.is_near_limit(decision) {
            let labels = [("limiter", limiter.to_owned()), ("policy", policy.clone()), ("limit", limit.clone())];
            metrics::counter!("limiter_near_limit_total", &labels).increment(1);
        }
        let outcome = if decision.allowed() { "allowed" } else { "denied" };
        metrics::counter!("limiter_decisions_total", "limiter" => limiter, "policy" => policy, "limit" => limit,
            "operation" => operation, "outcome" => outcome)
        .increment(1);
        seconds(limiter, operation, took);
    }

    fn changed(&self, operation: Operation<'_>, _: bool, took: Duration) {
        seconds(operation.log.name.as_str(), operation.verb, took);
    }

    fn failed(&self, operation: Operation<'_>, error: &Error, took: Duration) {
        let Some(kind) = kind(error.kind()) else { return };
        let limiter = operation.log.name.as_str();
        metrics::counter!("limiter_store_errors_total", "limiter" => limiter, "operation" => operation.verb, "kind" => kind)
            .increment(1);
        seconds(limiter, operation.verb, took);
    }
}

impl<S, O: StoreObserver> ObservedStore<S, O> {
    /// Sets the gauge `limiter_keys`, for instance `store.report_keys(MemoryStore::len)` whenever metrics are collected.
    pub fn report_keys(&self, count: impl FnOnce(&S) -> usize) {
        metrics::gauge!("limiter_keys").set(count(self.store()) as f64);
    }
}

fn verb(op: &Op<'_>) -> &'static str {
    Operation::of_op(op).verb
}

fn seconds(limiter: &'static str, operation: &'static str, took: Duration) {
    metrics::histogram!("limiter_store_duration_seconds", "limiter" => limiter, "operation" => operation).record(took);
}

/// Returns the label of an error; `None` for a call that makes no sense, which is no failure of the store.
fn kind(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::InvalidCost | ErrorKind::CostExceedsLimit => return None,
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Inconsistent => "inconsistent",
        ErrorKind::Configuration => "configuration",
        _ => "other",
    })
}
