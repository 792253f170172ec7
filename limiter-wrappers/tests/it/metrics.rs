//! What metrics contain, and what they never do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::faulty::{Does, Faulty, SECRET, traffic};
use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_wrappers::Stack;
use limiter_wrappers::observe::{Metrics, ObservedStore, Report};
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

#[test]
fn decisions_are_counted_by_policy_limit_and_outcome() {
    let metrics = metrics_of(|| {
        let metrics = Metrics::new();
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), metrics));
        traffic(&Limiter::new("search", policy!("5/10s"), store.clone()));
        metrics.report_keys(store.store().len());
    });
    let decisions = |policy: &str, operation: &str, outcome: &str| {
        let limit = if policy == "gold" { "50/10s" } else { policy };
        let name = format!(
            "limiter_decisions_total store=default limiter=search policy={policy} limit={limit} operation={operation} outcome={outcome}"
        );
        metrics.get(&name).cloned().unwrap_or_default()
    };
    assert_eq!(decisions("5/10s", "acquire", "allowed"), "5");
    assert_eq!(decisions("5/10s", "acquire", "denied"), "1");
    assert_eq!(decisions("gold", "acquire", "allowed"), "1");
    assert_eq!(decisions("5/10s", "peek", "denied"), "1");
    assert_eq!(decisions("5/10s", "record", "denied"), "1");
    assert!(!metrics.keys().any(|name| name.contains("decisions") && name.contains("status")), "{metrics:?}");
    let near_limit = &metrics["limiter_near_limit_total store=default limiter=search policy=5/10s limit=5/10s"];
    assert_eq!(near_limit, "2", "4 and 5 of 5");
    for (operation, count) in [("acquire", 7), ("peek", 1), ("status", 1), ("record", 1), ("settle", 1), ("reset", 1)] {
        let name = format!("limiter_store_duration_seconds store=default limiter=search operation={operation}");
        assert_eq!(metrics[&name], format!("{count} values"), "{operation}");
    }
    assert_eq!(metrics["limiter_keys store=default"], "1", "the other was reset");
    assert!(metrics.keys().all(|name| !name.contains(SECRET)), "{metrics:?}");
    assert!(
        metrics.keys().all(|name| !name.contains("errors")),
        "a cost that makes no sense is no failure of the store"
    );
}

#[test]
fn stores_with_different_names_do_not_add_up() {
    let metrics = metrics_of(|| {
        let observed = |name: &str| ObservedStore::new(MemoryStore::new(), Metrics::named(name));
        let outer = ObservedStore::new(observed("redis"), Metrics::named("stack"));
        let _ = Limiter::new("search", policy!("5/10s"), outer).acquire(SECRET).now().unwrap();
    });
    for store in ["redis", "stack"] {
        let name = format!("limiter_store_duration_seconds store={store} limiter=search operation=acquire");
        assert_eq!(metrics[&name], "1 values");
    }
}

#[test]
fn errors_are_counted_by_kind() {
    let metrics = metrics_of(|| {
        let remote = Faulty::default();
        let limiter = Limiter::new("search", policy!("5/10s"), ObservedStore::new(remote.clone(), Metrics::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let _ = limiter.acquire(SECRET).await.unwrap();
            remote.set(Does::Refuse);
            limiter.acquire(SECRET).await.unwrap_err();
            limiter.reset(SECRET).await.unwrap_err();
            remote.set(Does::Contradict);
            limiter.acquire(SECRET).await.unwrap_err();
        });
    });
    let errors = |operation: &str, kind: &str| {
        let name = format!("limiter_store_errors_total store=default limiter=search operation={operation} kind={kind}");
        metrics.get(&name).cloned().unwrap_or_default()
    };
    assert_eq!((errors("acquire", "unavailable"), errors("reset", "unavailable")), ("1".to_owned(), "1".to_owned()));
    assert_eq!(errors("acquire", "inconsistent"), "1");
    assert_eq!(metrics["limiter_store_duration_seconds store=default limiter=search operation=acquire"], "3 values");
}

#[test]
fn a_stack_reports_its_state() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let remote = Faulty::default();
    let metrics = Metrics::named("redis");
    let stack = || Stack::new(remote.clone()).failure_threshold(2);
    let fallback = runtime.block_on(async { stack().fallback(MemoryStore::new()) });
    let (open, closed, error) = (stack().fail_open(), stack().fail_closed(), stack().or_error());
    let state = |store: &dyn Report| {
        let values = metrics_of(|| {
            let _ = Metrics::named("redis");
            store.report(&metrics);
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
    assert_eq!((state(&open), state(&error)), (format!("breaker_open 0, {calm}"), "breaker_open 0".to_owned()));

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
    assert_eq!([state(&open), state(&closed)], [(); 2].map(|()| format!("breaker_open 1, {}", out(7))));
    assert_eq!(state(&ObservedStore::new(error.clone(), metrics)), "breaker_open 1");

    remote.set(Does::Answer);
    for _ in 0..2 {
        runtime.block_on(calls());
        runtime.block_on(tokio::time::advance(Duration::from_secs(1)));
    }
    runtime.block_on(calls());
    assert_eq!(state(&open), "breaker_open 0, outage 0, outage_seconds_total 8, outages_total 1");
}
