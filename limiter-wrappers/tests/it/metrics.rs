//! What metrics contain, and what they never do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::faulty::{Does, Faulty, SECRET, traffic};
use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_wrappers::observe::{Metrics, ObservedStore};
use limiter_wrappers::{Guarded, Stack};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// Runs something and returns its metrics as text, each of which must have a unit and a description.
pub(crate) fn metrics_of(run: impl FnOnce()) -> BTreeMap<String, String> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, run);
    let entries = snapshotter.snapshot().into_vec().into_iter().map(|(key, unit, help, value)| {
        assert!(unit.is_some() && help.is_some_and(|help| help.ends_with('.')), "{key:?}");
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

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Returns the metrics with their values, in few words.
fn shown(run: impl FnOnce()) -> Vec<String> {
    let short = |name: String| name.replace("limiter_", "").replace("store=default limiter=search ", "");
    metrics_of(run).into_iter().map(|(name, value)| format!("{}: {value}", short(name))).collect()
}

#[test]
fn decisions_are_counted_by_policy_limit_and_outcome_without_keys() {
    let metrics = shown(|| {
        let metrics = Metrics::new("default");
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), metrics.clone()));
        traffic(&Limiter::new("search", policy!("5/10s"), store.clone()));
        metrics.report_keys(store.store().len());
    });
    // A status decides nothing, and a cost that makes no sense is no failure of the store.
    let expected = [
        "decisions_total policy=5/10s limit=5/10s operation=acquire outcome=allowed: 5",
        "decisions_total policy=5/10s limit=5/10s operation=acquire outcome=denied: 1",
        "decisions_total policy=5/10s limit=5/10s operation=peek outcome=denied: 1",
        "decisions_total policy=5/10s limit=5/10s operation=record outcome=denied: 1",
        "decisions_total policy=gold limit=50/10s operation=acquire outcome=allowed: 1",
        "keys store=default: 1",
        "near_limit_total policy=5/10s limit=5/10s: 2",
        "store_duration_seconds operation=acquire: 7 values",
        "store_duration_seconds operation=peek: 1 values",
        "store_duration_seconds operation=record: 1 values",
        "store_duration_seconds operation=reset: 1 values",
        "store_duration_seconds operation=settle: 1 values",
        "store_duration_seconds operation=status: 1 values",
    ];
    assert_eq!(metrics, expected);
}

#[test]
fn errors_are_counted_by_kind_and_each_store_alone() {
    let metrics = shown(|| {
        let remote = Faulty::default();
        let inner = ObservedStore::new(remote.clone(), Metrics::new("default"));
        let limiter = Limiter::new("search", policy!("5/10s"), ObservedStore::new(inner, Metrics::new("stack")));
        block_on(async {
            let _ = limiter.acquire(SECRET).await.unwrap();
            remote.set(Does::Refuse);
            limiter.acquire(SECRET).await.unwrap_err();
            limiter.reset(SECRET).await.unwrap_err();
            remote.set(Does::Contradict);
            limiter.acquire(SECRET).await.unwrap_err();
        });
    });
    let of_stack = metrics.iter().filter(|name| name.contains("store=stack")).count();
    let expected = [
        "decisions_total policy=5/10s limit=5/10s operation=acquire outcome=allowed: 1",
        "store_duration_seconds operation=acquire: 3 values",
        "store_duration_seconds operation=reset: 1 values",
        "store_errors_total operation=acquire kind=inconsistent: 1",
        "store_errors_total operation=acquire kind=unavailable: 1",
        "store_errors_total operation=reset kind=unavailable: 1",
    ];
    assert_eq!(of_stack, expected.len());
    assert_eq!(metrics.into_iter().filter(|name| !name.contains("stack")).collect::<Vec<_>>(), expected);
}

#[test]
fn a_stack_reports_its_state() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let remote = Faulty::default();
    let metrics = Metrics::new("redis");
    let stack = || Stack::new(remote.clone()).failure_threshold(2);
    let fallback = runtime.block_on(async { stack().fallback(MemoryStore::new()) });
    let (open, closed, error) = (stack().fail_open(), stack().fail_closed(), stack().or_error());
    let state = |store: &Guarded<Faulty>| {
        let values = metrics_of(|| {
            let _ = Metrics::new("redis");
            metrics.report(store);
        });
        let short = |name: String| name.trim_start_matches("limiter_").replace(" store=redis", "");
        values.into_iter().map(|(name, value)| format!("{} {value}", short(name))).collect::<Vec<_>>().join(", ")
    };
    let carried = |logs, decisions| {
        format!("carried_dropped_total 0, carried_logs {logs}, fallback_decisions_total {decisions}, ")
    };
    let calm = "outage 0, outage_seconds_total 0, outages_total 0";
    let _entered = runtime.enter();
    assert_eq!(state(&fallback), format!("breaker_open 0, {}{calm}", carried(0, 0)));
    assert_eq!([state(&open), state(&error)], [(); 2].map(|()| format!("breaker_open 0, {calm}")));

    let calls = async || {
        for _ in 0..5 {
            let policy = policy!("50/10s");
            let _ = Limiter::new("search", policy.clone(), fallback.clone()).acquire(SECRET).await.unwrap();
            let _ = Limiter::new("search", policy.clone(), open.clone()).acquire(SECRET).await.unwrap();
            let _ = Limiter::new("search", policy.clone(), closed.clone()).acquire(SECRET).await.unwrap();
            let _ = Limiter::new("search", policy, error.clone()).acquire(SECRET).await;
        }
    };
    remote.set(Does::Refuse);
    runtime.block_on(calls());
    let out = |seconds| format!("outage 1, outage_seconds_total {seconds}, outages_total 1");
    assert_eq!(state(&fallback), format!("breaker_open 1, {}{}", carried(1, 5), out(0)));
    runtime.block_on(tokio::time::advance(Duration::from_secs(7)));
    assert_eq!([&open, &closed, &error].map(state), [(); 3].map(|()| format!("breaker_open 1, {}", out(7))));

    remote.set(Does::Answer);
    for _ in 0..2 {
        runtime.block_on(calls());
        runtime.block_on(tokio::time::advance(Duration::from_secs(1)));
    }
    runtime.block_on(calls());
    assert_eq!(state(&open), "breaker_open 0, outage 0, outage_seconds_total 8, outages_total 1");
}
