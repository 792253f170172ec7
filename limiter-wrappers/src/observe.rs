//! Counts and times each operation on a store, through the `metrics` facade.
//!
//! ```
//! use limiter_core::{Limiter, policy};
//! # use limiter_testkit::ReferenceStore as MemoryStore;
//! use limiter_wrappers::observe::ObservedStore;
//!
//! let store = ObservedStore::new(MemoryStore::new(), "memory");
//! let search = Limiter::new("search", policy!("5/10s"), store);
//! # let _ = search;
//! ```
//!
//! Around a whole stack, metrics show the callers' results: no errors if the stack fails open, fails closed or falls back.
//! Around the innermost store, they show how often the store is called, but not the calls that a timeout around it drops.
//!
//! | metric | kind | labels besides `store` |
//! |---|---|---|
//! | `limiter_decisions_total` | counter | `limiter`, `policy`, `limit`, `operation`, `outcome` (`allowed`, `denied`) |
//! | `limiter_near_limit_total` | counter | `limiter`, `policy`, `limit`: admitted acquires that leave at most a fifth |
//! | `limiter_clock_behind_total` | counter | `limiter`: decisions while the store's clock was over a second behind the newest entry |
//! | `limiter_store_duration_seconds` | histogram | `limiter`, `operation` |
//! | `limiter_store_errors_total` | counter | `limiter`, `operation`, `kind`, an [`ErrorKind`] |
//! | `limiter_keys` | gauge | none: see [`report_keys`] |
//! | `limiter_outage`, `limiter_breaker_open` | gauges, 0 or 1 | `node` if the store's [nodes](WindowStore::node) have names: see [`report`] |
//! | `limiter_outages_total` | counter | none: outages that began |
//! | `limiter_lease_decisions_total` | counter | `from` (`block`, `store`): acquires under limits with a [lease](Limit::with_lease), see [`report`] |
//! | `limiter_carried_logs` | gauge | none: see [`report`] |
//! | `limiter_carried_dropped_total` | counter | none: see [`report`] |
//!
//! `store` is the name that the store was given. `limit` is the binding limit, `5/10s`. `policy` is the policy's name, or all its
//! limits if it has none: give names to policies that come from a database. A status is timed, but is no decision. Clients
//! cannot choose a label. No metric has a key, which is often an address or a secret. Their number has no bound.
//!
//! `docs/grafana/dashboard.json` in the repository is a Grafana dashboard for these metrics.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use foldhash::fast::RandomState;
use limiter_core::store::{
    Facts, JointFacts, JointOp, LogKey, Mode, Op, Settlement, SettlementFacts, decide,
};
use limiter_core::{Clock, Decision, Error, ErrorKind, Limit, Name, Policy, WindowStore};
use metrics::{
    Counter, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

#[cfg(feature = "outages")]
use crate::Guarded;

/// A store that counts and times each operation. It changes no result.
///
/// It does not count an operation that is dropped before it ends, for example by a timeout around it.
#[derive(Debug)]
pub struct ObservedStore<S> {
    store: S,
    name: Name,
    by_limiter: bool,
    // Looking a series up in a recorder formats and hashes its labels, which takes longer than a decision in memory.
    durations: Series<(Name, &'static str), Histogram>,
    /// By limiter, the limit that decided, and whether it allowed.
    decisions: Series<(Name, Mode, Limit, bool), Vec<Decisions>>,
}

type Series<K, V> = RwLock<HashMap<K, V, RandomState>>;

/// The decisions of a policy.
#[derive(Debug)]
struct Decisions {
    policy: Policy,
    all: Counter,
    near_limit: Counter,
}

impl<S> ObservedStore<S> {
    /// Returns `store` with metrics, whose label `store` is this name. Stores with equal names add up.
    ///
    /// Describes the metrics to the current recorder, so install the recorder first.
    #[must_use]
    pub fn new(store: S, name: impl Into<Name>) -> Self {
        let text = "Decisions, by deciding limit and outcome.";
        describe_counter!("limiter_decisions_total", Unit::Count, text);
        let text = "Admitted acquires that left at most a fifth of their limit.";
        describe_counter!("limiter_near_limit_total", Unit::Count, text);
        let text =
            "Decisions while the store's clock was over a second behind the log's newest entry.";
        describe_counter!("limiter_clock_behind_total", Unit::Count, text);
        let text = "Duration of store operations.";
        describe_histogram!("limiter_store_duration_seconds", Unit::Seconds, text);
        let text = "Failed operations, by kind of error.";
        describe_counter!("limiter_store_errors_total", Unit::Count, text);
        Self {
            store,
            name: name.into(),
            by_limiter: true,
            durations: Series::default(),
            decisions: Series::default(),
        }
    }

    /// Drops the label `limiter`, and the metrics of decisions, which make no sense without it.
    ///
    /// For programs that count decisions themselves, or whose limiters are too many or do not last: a recorder keeps the series
    /// of a limiter that is gone.
    #[must_use]
    pub fn without_limiters(self) -> Self {
        Self {
            by_limiter: false,
            ..self
        }
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Notes the result of an operation.
    fn note(&self, op: &Op<'_>, decision: Result<&Decision, &Error>, began: Instant) {
        self.took(op.log, verb(op), decision.map(drop), began);
        if let Ok(decision) = decision
            && !op.hints.is_status
            && self.by_limiter
        {
            self.count(op, decision);
            if decision.clock_behind() > Duration::from_secs(1) {
                let store = self.name.as_str();
                let limiter = op.log.name.as_str();
                counter!("limiter_clock_behind_total", "store" => store, "limiter" => limiter)
                    .increment(1);
            }
        }
    }

    fn note_facts(&self, op: &Op<'_>, facts: Result<&Facts, &Error>, began: Instant) {
        match facts {
            // The limiter also verifies the facts, and returns this error.
            Ok(facts) => {
                let decision = facts.verify(op).map(|()| decide(op, facts.clone()));
                self.note(op, decision.as_ref(), began);
            }
            Err(error) => self.note(op, Err(error), began),
        }
    }

    /// Notes how long an operation took, and its error unless that reports an invalid operation, which is no failure of the store.
    fn took(
        &self,
        log: LogKey<'_>,
        verb: &'static str,
        result: Result<(), &Error>,
        began: Instant,
    ) {
        let took = began.elapsed();
        let limiter = if self.by_limiter { log.name } else { self.name };
        let labels = |kind: Option<&'static str>| {
            let limiter = self.by_limiter.then_some(("limiter", limiter.as_str()));
            let kind = kind.map(|kind| ("kind", kind));
            let labels = [("store", self.name.as_str())].into_iter().chain(limiter);
            labels
                .chain([("operation", verb)])
                .chain(kind)
                .map(|(name, value)| Label::from_static_parts(name, value))
                .collect::<Vec<_>>()
        };
        if let Err(error) = result {
            if matches!(
                error.kind(),
                ErrorKind::InvalidCost | ErrorKind::CostExceedsLimit | ErrorKind::NeedsExactLimit
            ) {
                return;
            }
            let labels = labels(Some(error.kind().as_str()));
            counter!("limiter_store_errors_total", labels).increment(1);
        }
        let durations = read(&self.durations);
        if let Some(durations) = durations.get(&(limiter, verb)) {
            return durations.record(took);
        }
        drop(durations);
        let duration = histogram!("limiter_store_duration_seconds", labels(None));
        duration.record(took);
        write(&self.durations).insert((limiter, verb), duration);
    }

    /// Counts a decision.
    fn count(&self, op: &Op<'_>, decision: &Decision) {
        let limit = decision.limit();
        let allowed = decision.fits();
        let is_near_limit = u128::from(decision.used()) * 5 >= u128::from(limit.max()) * 4;
        let increment = |decisions: &Decisions| {
            decisions.all.increment(1);
            decisions.near_limit.increment(u64::from(is_near_limit));
        };
        let key = (op.log.name, op.mode, limit, allowed);
        let known = read(&self.decisions);
        let mut policies = known.get(&key).into_iter().flatten();
        if let Some(decisions) = policies.find(|known| known.policy == *op.policy) {
            return increment(decisions);
        }
        drop(known);
        let name = op.policy.name().map(str::to_owned);
        let policy = name.unwrap_or_else(|| op.policy.to_string());
        let store = self.name.as_str();
        let limiter = op.log.name.as_str();
        let limit = limit.to_string();
        let near_limit = match allowed && op.mode == Mode::Acquire {
            true => counter!("limiter_near_limit_total", "store" => store, "limiter" => limiter,
                "policy" => policy.clone(), "limit" => limit.clone()),
            false => Counter::noop(),
        };
        let all = counter!("limiter_decisions_total", "store" => store, "limiter" => limiter, "policy" => policy,
            "limit" => limit, "operation" => verb(op), "outcome" => if allowed { "allowed" } else { "denied" });
        let decisions = Decisions {
            policy: op.policy.clone(),
            all,
            near_limit,
        };
        increment(&decisions);
        let mut all = write(&self.decisions);
        all.entry(key).or_default().push(decisions);
    }
}

fn read<K, V>(series: &Series<K, V>) -> RwLockReadGuard<'_, HashMap<K, V, RandomState>> {
    series.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<K, V>(series: &Series<K, V>) -> RwLockWriteGuard<'_, HashMap<K, V, RandomState>> {
    series.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the label of a decided operation.
const fn verb(op: &Op<'_>) -> &'static str {
    match op.mode {
        Mode::Acquire => "acquire",
        Mode::Peek if op.hints.is_status => "status",
        Mode::Peek => "peek",
        Mode::Record => "record",
    }
}

#[deny(clippy::missing_trait_methods)]
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
        self.took(settlement.log, "settle", facts.as_ref().map(drop), began);
        facts
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let began = Instant::now();
        let existed = self.store.reset(log).await;
        self.took(log, "reset", existed.as_ref().map(drop), began);
        existed
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let began = Instant::now();
        let results = self.store.apply_all(ops).await;
        match &results {
            Ok(results) => {
                for (joint, facts) in ops.iter().zip(results.iter().flatten()) {
                    let facts = facts.as_ref();
                    let op = facts.map_or(joint.op, |facts| joint.described_by(facts));
                    self.note_facts(&op, facts, began);
                }
            }
            Err(error) => ops
                .iter()
                .for_each(|joint| self.note_facts(&joint.op, Err(error), began)),
        }
        results
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let began = Instant::now();
        let decision = self.store.try_decide(op)?;
        self.note(&op, decision.as_ref(), began);
        Some(decision)
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.store.clock()
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

/// Sets the gauge `limiter_keys` of a store, for instance to `MemoryStore::len` whenever metrics are collected.
pub fn report_keys(store: impl Into<Name>, keys: usize) {
    describe_gauge!("limiter_keys", Unit::Count, "Keys that the store holds.");
    gauge!("limiter_keys", "store" => store.into().as_str()).set(keys as f64);
}

/// Sets the metrics of outages, breakers and carried charges. Call it whenever metrics are collected:
///
/// ```
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # let redis = MemoryStore::new();
/// use limiter_wrappers::Guarded;
/// use limiter_wrappers::observe::{ObservedStore, report};
///
/// let stack = Guarded::builder(ObservedStore::new(redis, "redis")).fallback(MemoryStore::new());
/// let store = ObservedStore::new(stack, "stack");
/// report("stack", store.store());
/// ```
#[cfg(feature = "outages")]
pub fn report<S>(store: impl Into<Name>, guarded: &Guarded<S>) {
    let store = store.into().as_str();
    let nodes = |name, text, nodes: Vec<(Option<std::sync::Arc<str>>, bool)>| {
        describe_gauge!(name, Unit::Count, text);
        let is_so = nodes.iter().any(|(node, is_so)| node.is_none() && *is_so);
        gauge!(name, "store" => store).set(f64::from(u8::from(is_so)));
        for (node, is_so) in nodes {
            let Some(node) = node else { continue };
            let gauge = gauge!(name, "store" => store, "node" => node.to_string());
            gauge.set(f64::from(u8::from(is_so)));
        }
    };
    let text = "1 during an outage of the store or the node, otherwise 0.";
    nodes("limiter_outage", text, guarded.nodes());
    let text = "1 while the circuit breaker blocks calls to the store or the node, otherwise 0.";
    nodes("limiter_breaker_open", text, guarded.breakers());
    let total = |name, text, total| {
        describe_counter!(name, Unit::Count, text);
        counter!(name, "store" => store).absolute(total);
    };
    let text = "Outages of the store or its nodes so far.";
    total("limiter_outages_total", text, guarded.outages());
    let (from_blocks, by_calls) = guarded.lease_decisions();
    let text = "Acquires under limits with a lease, by where they were decided.";
    describe_counter!("limiter_lease_decisions_total", Unit::Count, text);
    for (from, total) in [("block", from_blocks), ("store", by_calls)] {
        counter!("limiter_lease_decisions_total", "store" => store, "from" => from).absolute(total);
    }
    let text = "Logs dropped instead of carried over, because there were too many.";
    total("limiter_carried_dropped_total", text, guarded.dropped());
    let text = "Logs charged during outages and waiting to be carried over.";
    describe_gauge!("limiter_carried_logs", Unit::Count, text);
    gauge!("limiter_carried_logs", "store" => store).set(guarded.carried_logs() as f64);
}
