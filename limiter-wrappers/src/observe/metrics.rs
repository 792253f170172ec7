//! Counters, histograms and gauges of the `metrics` facade.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use foldhash::fast::RandomState;
use limiter_core::store::{Mode, Op};
use limiter_core::{Decision, Error, ErrorKind, Limit, Name, Policy};
use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

#[cfg(feature = "outages")]
use crate::Guarded;

const DECISIONS: &str = "limiter_decisions_total";
const NEAR_LIMIT: &str = "limiter_near_limit_total";
const DURATION: &str = "limiter_store_duration_seconds";
const ERRORS: &str = "limiter_store_errors_total";
const KEYS: &str = "limiter_keys";
const OUTAGE: &str = "limiter_outage";
const OUTAGES: &str = "limiter_outages_total";
const OUTAGE_SECONDS: &str = "limiter_outage_seconds_total";
const BREAKER_OPEN: &str = "limiter_breaker_open";
const FALLBACK_DECISIONS: &str = "limiter_fallback_decisions_total";
const CARRIED_LOGS: &str = "limiter_carried_logs";
const CARRIED_DROPPED: &str = "limiter_carried_dropped_total";

/// Counts and times the operations of an [`ObservedStore`](crate::observe::ObservedStore) through the `metrics` facade.
///
/// | metric | kind | labels besides `store` |
/// |---|---|---|
/// | `limiter_decisions_total` | counter | `limiter`, `policy`, `limit`, `operation`, `outcome` (`allowed`, `denied`) |
/// | `limiter_near_limit_total` | counter | `limiter`, `policy`, `limit`: admitted acquires that leave at most a fifth |
/// | `limiter_store_duration_seconds` | histogram | `limiter`, `operation` |
/// | `limiter_store_errors_total` | counter | `limiter`, `operation`, `kind`, an [`ErrorKind`](limiter_core::ErrorKind) |
/// | `limiter_keys` | gauge | none: see [`report_keys`](Self::report_keys) |
/// | `limiter_outage`, `limiter_breaker_open` | gauges, 0 or 1 | `node` if the store's [nodes](limiter_core::store::LogPlace::node) have names: see [`report`](Self::report) |
/// | `limiter_outages_total`, `limiter_outage_seconds_total` | counters | none: outages that began, and how long all took, in whole seconds |
/// | `limiter_carried_logs` | gauge | none: see [`report`](Self::report) |
/// | `limiter_fallback_decisions_total`, `limiter_carried_dropped_total` | counters | none: see [`report`](Self::report) |
///
/// `store` is the name that the metrics were given. `limit` is the binding limit, `5/10s`. `policy` is the policy's name, or all its
/// limits if it has none: give names to policies that come from a database. A status is timed, but decides nothing. Clients
/// cannot choose a label.
///
/// `docs/grafana/dashboard.json` in the repository is a Grafana dashboard for these metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    store: &'static str,
    series: Arc<Series>,
}

impl Metrics {
    /// Returns the metrics of a store with this name, the value of each metric's label `store`. Those with equal names add up.
    ///
    /// Describes the metrics to the current recorder, so install the recorder first.
    #[must_use]
    pub fn new(store: impl Into<Name>) -> Self {
        describe();
        Self { store: store.into().as_str(), series: Arc::default() }
    }

    /// Sets the gauge `limiter_keys`, for instance to `MemoryStore::len` whenever metrics are collected.
    pub fn report_keys(&self, keys: usize) {
        self.set(KEYS, keys);
    }

    /// Sets the metrics of outages, breakers and carried charges. Call it whenever metrics are collected:
    ///
    /// ```
    /// # use limiter_testkit::ReferenceStore as MemoryStore;
    /// # let redis = MemoryStore::new();
    /// use limiter_wrappers::Stack;
    /// use limiter_wrappers::observe::{Metrics, ObservedStore};
    ///
    /// let (inner, outer) = (Metrics::new("redis"), Metrics::new("stack"));
    /// let stack = Stack::new(ObservedStore::new(redis, inner)).fallback(MemoryStore::new());
    /// let store = ObservedStore::new(stack, outer.clone());
    /// outer.report(store.store());
    /// ```
    #[cfg(feature = "outages")]
    pub fn report<S>(&self, store: &Guarded<S>) {
        let total = |name, total| counter!(name, "store" => self.store).absolute(total);
        self.set_nodes(OUTAGE, &store.nodes());
        self.set_nodes(BREAKER_OPEN, &store.breakers());
        let (begun, took) = store.outages();
        total(OUTAGES, begun);
        total(OUTAGE_SECONDS, took.as_secs());
        self.set(CARRIED_LOGS, store.carried_logs());
        total(CARRIED_DROPPED, store.dropped());
        total(FALLBACK_DECISIONS, store.fallback_decisions());
    }

    fn set(&self, name: &'static str, value: usize) {
        gauge!(name, "store" => self.store).set(value as f64);
    }

    /// Sets a gauge for each node that has failed, or for the store if its nodes have no names.
    #[cfg(feature = "outages")]
    fn set_nodes(&self, name: &'static str, nodes: &[(Option<Arc<str>>, bool)]) {
        let unnamed = nodes.iter().any(|(node, fails)| node.is_none() && *fails);
        self.set(name, usize::from(unnamed));
        for (node, fails) in nodes {
            if let Some(node) = node {
                gauge!(name, "store" => self.store, "node" => node.to_string()).set(f64::from(u8::from(*fails)));
            }
        }
    }

    /// Notes how long an operation took.
    pub(super) fn took(&self, limiter: Name, verb: &'static str, took: Duration) {
        let series = self.series.durations.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = series.get(&(limiter, verb)) {
            return series.record(took);
        }
        drop(series);
        let series = histogram!(DURATION, "store" => self.store, "limiter" => limiter.as_str(), "operation" => verb);
        series.record(took);
        self.series.durations.write().unwrap_or_else(PoisonError::into_inner).insert((limiter, verb), series);
    }

    /// Notes a decision. A status admits and denies nothing.
    pub(super) fn decided(&self, op: &Op<'_>, decision: &Decision, took: Duration) {
        self.took(op.log.name, verb(op), took);
        if op.is_status {
            return;
        }
        let (limit, allowed) = (decision.limit(), decision.allowed());
        let is_near_limit = u128::from(decision.used()) * 5 >= u128::from(limit.max()) * 4;
        if allowed && op.mode == Mode::Acquire && is_near_limit {
            self.count(NEAR_LIMIT, op, limit, allowed);
        }
        self.count(DECISIONS, op, limit, allowed);
    }

    /// Counts an error, unless it reports an invalid operation, which is no failure of the store.
    pub(super) fn failed(&self, limiter: Name, verb: &'static str, error: &Error, took: Duration) {
        if matches!(error.kind(), ErrorKind::InvalidCost | ErrorKind::CostExceedsLimit) {
            return;
        }
        let (name, kind) = (limiter.as_str(), error.kind().as_str());
        counter!(ERRORS, "store" => self.store, "limiter" => name, "operation" => verb, "kind" => kind).increment(1);
        self.took(limiter, verb, took);
    }

    /// Counts a decision.
    fn count(&self, metric: &'static str, op: &Op<'_>, limit: Limit, allowed: bool) {
        let (key, name) = ((op.log.name, metric, op.mode, limit, allowed), op.log.name.as_str());
        let counters = self.series.counters.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = counters.get(&key).into_iter().flatten();
        if let Some((_, counter)) = known.find(|(policy, _)| policy == op.policy) {
            return counter.increment(1);
        }
        drop(counters);
        let policy = op.policy.name().map_or_else(|| op.policy.to_string(), str::to_owned);
        let (store, limit, verb) = (self.store, limit.to_string(), verb(op));
        let outcome = if allowed { "allowed" } else { "denied" };
        let counter = match metric {
            DECISIONS => counter!(DECISIONS, "store" => store, "limiter" => name, "policy" => policy, "limit" => limit,
                "operation" => verb, "outcome" => outcome),
            metric => counter!(metric, "store" => store, "limiter" => name, "policy" => policy, "limit" => limit),
        };
        counter.increment(1);
        let mut counters = self.series.counters.write().unwrap_or_else(PoisonError::into_inner);
        counters.entry(key).or_default().push((op.policy.clone(), counter));
    }
}

/// The series so far. Looking them up in a recorder formats and hashes their labels, which takes longer than a decision in memory.
#[derive(Debug, Default)]
struct Series {
    durations: RwLock<Map<(Name, &'static str), Histogram>>,
    counters: RwLock<Map<CounterKey, Vec<(Policy, Counter)>>>,
}

type Map<K, V> = HashMap<K, V, RandomState>;

/// A limiter, a metric, a verb, the limit that decided, and whether it allowed.
type CounterKey = (Name, &'static str, Mode, Limit, bool);

/// Returns the label of a decided operation.
pub(super) const fn verb(op: &Op<'_>) -> &'static str {
    match op.mode {
        Mode::Acquire => "acquire",
        Mode::Peek if op.is_status => "status",
        Mode::Peek => "peek",
        Mode::Record => "record",
    }
}

/// Describes each metric to the current recorder.
fn describe() {
    describe_counter!(DECISIONS, Unit::Count, "Decisions, by deciding limit and outcome.");
    describe_counter!(NEAR_LIMIT, Unit::Count, "Admitted acquires that left at most a fifth of their limit.");
    describe_histogram!(DURATION, Unit::Seconds, "Duration of store operations.");
    describe_counter!(ERRORS, Unit::Count, "Failed operations, by kind of error.");
    describe_gauge!(KEYS, Unit::Count, "Keys that the store holds.");
    describe_gauge!(OUTAGE, Unit::Count, "1 during an outage of the store or the node, otherwise 0.");
    describe_counter!(OUTAGES, Unit::Count, "Outages of the store or its nodes so far.");
    describe_counter!(OUTAGE_SECONDS, Unit::Seconds, "Total duration of outages so far.");
    describe_gauge!(
        BREAKER_OPEN,
        Unit::Count,
        "1 while the circuit breaker blocks calls to the store or the node, otherwise 0."
    );
    describe_counter!(FALLBACK_DECISIONS, Unit::Count, "Calls decided by the local store during outages.");
    describe_gauge!(CARRIED_LOGS, Unit::Count, "Logs charged during outages and waiting to be carried over.");
    describe_counter!(
        CARRIED_DROPPED,
        Unit::Count,
        "Logs dropped instead of carried over, because there were too many."
    );
}
