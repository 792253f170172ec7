//! What metrics and traces contain, and what they never do.

mod common;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use common::stores::{Mood, Remote};
use limiter_core::{Limiter, NowStore, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::conformance::Suite;
use limiter_tower::observe::{Metrics, ObservedStore, StoreObserver, Tracing};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tracing_subscriber::fmt::MakeWriter;

const SECRET: &str = "203.0.113.7";

#[derive(Debug)]
struct Quiet;

impl StoreObserver for Quiet {}

#[test]
fn an_observed_store_conforms() {
    let observed = ObservedStore::new(MemoryStore::new(), (Metrics::new(), (Tracing::new(), Quiet)));
    let report = Suite::new().depth(1).run_blocking(Arc::new(observed)).unwrap();
    assert!(report.operations > 0, "{report:?}");
}

/// Runs something and returns its metrics as text.
fn metrics_of(run: impl FnOnce()) -> BTreeMap<String, String> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, run);
    let entries = snapshotter.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
        let labels: Vec<String> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let value = match value {
            DebugValue::Counter(count) => count.to_string(),
            DebugValue::Gauge(value) => value.to_string(),
            DebugValue::Histogram(values) => format!("{} values", values.len()),
        };
        (format!("{} {}", key.key().name(), labels.join(" ")), value)
    });
    entries.collect()
}

fn traffic<S: NowStore>(limiter: &Limiter<S>) {
    for _ in 0..6 {
        let _ = limiter.acquire(SECRET).now().unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let decision = limiter.acquire(SECRET).policy(&gold).now().unwrap();
    let _ = limiter.peek(SECRET).now().unwrap();
    let _ = limiter.record("other").cost(7).now().unwrap();
    limiter.refund(SECRET, decision.receipt().unwrap()).now();
    limiter.reset(SECRET).now();
    limiter.acquire(SECRET).cost(6).now().unwrap_err();
}

#[test]
fn decisions_are_counted_by_policy_limit_and_outcome() {
    let metrics = metrics_of(|| {
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), Metrics::new()));
        traffic(&Limiter::new("search", policy!("5/10s"), store.clone()));
        store.report_keys(MemoryStore::len);
    });
    let decisions = |policy: &str, operation: &str, outcome: &str| {
        let limit = if policy == "gold" { "50/10s" } else { policy };
        let name = format!(
            "limiter_decisions_total limiter=search policy={policy} limit={limit} operation={operation} outcome={outcome}"
        );
        metrics.get(&name).cloned().unwrap_or_default()
    };
    assert_eq!(decisions("5/10s", "acquire", "allowed"), "5");
    assert_eq!(decisions("5/10s", "acquire", "denied"), "1");
    assert_eq!(decisions("gold", "acquire", "allowed"), "1");
    assert_eq!(decisions("5/10s", "peek", "denied"), "1");
    assert_eq!(decisions("5/10s", "record", "denied"), "1");
    assert_eq!(metrics["limiter_near_limit_total limiter=search policy=5/10s limit=5/10s"], "2", "4 and 5 of 5");
    assert_eq!(metrics["limiter_store_seconds limiter=search operation=acquire"], "7 values");
    assert_eq!(metrics["limiter_store_seconds limiter=search operation=settle"], "1 values");
    assert_eq!(metrics["limiter_store_seconds limiter=search operation=reset"], "1 values");
    assert_eq!(metrics["limiter_keys "], "1", "the other was reset");
    assert!(metrics.keys().all(|name| !name.contains(SECRET)), "{metrics:?}");
    assert!(
        metrics.keys().all(|name| !name.contains("errors")),
        "a cost that makes no sense is no failure of the store"
    );
}

#[test]
fn errors_are_counted_by_kind() {
    let metrics = metrics_of(|| {
        let remote = Remote::new(Arc::new(MemoryStore::new()));
        let limiter = Limiter::new("search", policy!("5/10s"), ObservedStore::new(remote.clone(), Metrics::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let _ = limiter.acquire(SECRET).await.unwrap();
            remote.set(Mood::Failing);
            limiter.acquire(SECRET).await.unwrap_err();
            limiter.reset(SECRET).await.unwrap_err();
        });
    });
    let errors = |operation: &str| {
        metrics[&format!("limiter_store_errors_total limiter=search operation={operation} kind=unavailable")].clone()
    };
    assert_eq!((errors("acquire"), errors("reset")), ("1".to_owned(), "1".to_owned()));
    assert_eq!(metrics["limiter_store_seconds limiter=search operation=acquire"], "2 values");
}

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn log_of(run: impl FnOnce()) -> String {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    tracing::subscriber::with_default(subscriber.with_writer(lines.clone()).finish(), run);
    String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn traces_have_spans_and_no_keys() {
    let log = log_of(|| {
        traffic(&Limiter::new("search", policy!("5/10s"), ObservedStore::new(MemoryStore::new(), Tracing::new())));
    });
    assert!(!log.contains(SECRET), "{log}");
    let line = "decided limiter=\"search\" operation=\"acquire\" allowed=false limit=5/10s remaining=0 retry_after=";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    assert!(log.contains("changed limiter=\"search\" operation=\"settle\" applied=true"), "{log}");
    assert!(!log.contains("WARN") && log.contains("kind=CostExceedsLimit"), "{log}");
}

#[test]
fn a_span_surrounds_the_store_and_may_have_a_hash_of_the_key() {
    let log = log_of(|| {
        let remote = Remote::new(ObservedStore::new(MemoryStore::new(), Quiet));
        let observer = Tracing::new().with_key(|key| format!("{} bytes", key.len()));
        let limiter = Limiter::new("search", policy!("5/10s"), ObservedStore::new(Said(remote), observer));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _ = runtime.block_on(limiter.acquire(SECRET)).unwrap();
    });
    let span = "limiter{limiter=\"search\" operation=\"acquire\" cost=1 key=\"11 bytes\"}: ";
    assert!(log.contains(&format!("{span}observe: in the store")), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}

/// A store that logs.
#[derive(Debug)]
struct Said<S>(S);

impl<S: limiter_core::WindowStore> limiter_core::WindowStore for Said<S> {
    async fn apply(&self, op: limiter_core::store::Op<'_>) -> Result<limiter_core::store::Facts, limiter_core::Error> {
        tracing::debug!("in the store");
        self.0.apply(op).await
    }

    async fn settle(
        &self,
        settlement: limiter_core::store::Settlement<'_>,
    ) -> Result<limiter_core::store::SettlementFacts, limiter_core::Error> {
        self.0.settle(settlement).await
    }

    async fn reset(&self, log: limiter_core::store::LogKey<'_>) -> Result<bool, limiter_core::Error> {
        self.0.reset(log).await
    }
}
