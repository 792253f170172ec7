//! What metrics contain, and what they never do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::scene::{Does, Faulty};
use limiter_core::{Limiter, Timestamp, WindowStore, policy};
use limiter_memory::MemoryStore;
use limiter_wrappers::Guarded;
use limiter_wrappers::observe::{ObservedStore, report, report_keys};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// Runs something and returns its metrics as text, each of which must have a unit and a description.
pub(crate) fn metrics_of(run: impl FnOnce()) -> BTreeMap<String, String> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, run);
    let entries = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, unit, help, value)| {
            assert!(
                unit.is_some() && help.is_some_and(|help| help.ends_with('.')),
                "{key:?}"
            );
            let labels: Vec<String> = key
                .key()
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            let value = match value {
                DebugValue::Counter(count) => count.to_string(),
                DebugValue::Gauge(value) => value.to_string(),
                DebugValue::Histogram(values) => format!("{} values", values.len()),
            };
            (format!("{} {}", key.key().name(), labels.join(" ")), value)
        });
    entries.collect()
}

/// The key of [`traffic`].
pub(crate) const SECRET: &str = "203.0.113.7";

/// One operation of each kind on `SECRET`, with 5/10s.
pub(crate) async fn traffic<S: WindowStore>(limiter: &Limiter<S>) {
    let first = limiter.acquire(SECRET).await.unwrap();
    for _ in 0..5 {
        let _ = limiter.acquire(SECRET).await.unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let _ = limiter.acquire(SECRET).policy(&gold).await.unwrap();
    let _ = limiter.peek(SECRET).await.unwrap();
    let _ = limiter.status(SECRET).await.unwrap();
    let _ = limiter.record("other").cost(7).await.unwrap();
    let _ = limiter.refund(SECRET, first.receipt().unwrap()).await;
    let _ = limiter.reset(SECRET).await;
    limiter.acquire(SECRET).cost(6).await.unwrap_err();
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

/// Returns the metrics with their values, in few words.
fn shown(run: impl FnOnce()) -> Vec<String> {
    let short = |name: String| {
        name.replace("limiter_", "")
            .replace("store=default limiter=search ", "")
    };
    metrics_of(run)
        .into_iter()
        .map(|(name, value)| format!("{}: {value}", short(name)))
        .collect()
}

#[test]
fn decisions_while_the_clock_is_behind_are_counted() {
    let ahead = Timestamp::try_from(SystemTime::now()).unwrap();
    let ahead = ahead.saturating_add(Duration::from_secs(3600));
    let metrics = shown(|| {
        let store = ObservedStore::new(MemoryStore::new(), "default");
        let search = Limiter::new("search", policy!("5/10s"), store);
        block_on(async {
            assert!(search.acquire("k").at(ahead).await.unwrap().is_allowed());
            let denied = search.acquire("k").cost(5).await.unwrap();
            // The wait includes the time until the clock reaches the entry.
            assert!(denied.retry_after_secs() > Some(3600));
        });
    });
    let behind = "clock_behind_total store=default limiter=search: 1".to_owned();
    assert!(metrics.contains(&behind), "{metrics:?}");
}

#[test]
fn decisions_are_counted_by_policy_limit_and_outcome_without_keys() {
    let metrics = shown(|| {
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), "default"));
        block_on(traffic(&Limiter::new(
            "search",
            policy!("5/10s"),
            store.clone(),
        )));
        report_keys("default", store.store().len());
    });
    // A status is no decision, and an invalid cost is no failure of the store.
    let expected = [
        "decisions_total policy=5/10s limit=5/10s operation=acquire outcome=allowed: 5",
        "decisions_total policy=5/10s limit=5/10s operation=acquire outcome=denied: 1",
        "decisions_total policy=5/10s limit=5/10s operation=peek outcome=denied: 1",
        "decisions_total policy=5/10s limit=5/10s operation=record outcome=denied: 1",
        "decisions_total policy=gold limit=50/10s operation=acquire outcome=allowed: 1",
        "keys store=default: 1",
        "near_limit_total policy=5/10s limit=5/10s: 2",
        "near_limit_total policy=gold limit=50/10s: 0",
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
fn without_limiters_there_are_as_many_series_for_any_number_of_them() {
    let metrics = shown(|| {
        let remote = Faulty::default();
        let store = Arc::new(ObservedStore::new(remote.clone(), "default").without_limiters());
        block_on(async {
            for limiter in ["a", "b", "c"] {
                let limiter = Limiter::new(limiter, policy!("5/10s"), store.clone());
                remote.set(Does::Answer);
                let _ = limiter.acquire(SECRET).await.unwrap();
                remote.set(Does::Refuse);
                limiter.acquire(SECRET).await.unwrap_err();
            }
        });
    });
    let expected = [
        "store_duration_seconds store=default operation=acquire: 6 values",
        "store_errors_total store=default operation=acquire kind=unavailable: 3",
    ];
    assert_eq!(metrics, expected);
}

#[test]
fn errors_are_counted_by_kind_and_each_store_alone() {
    let metrics = shown(|| {
        let remote = Faulty::default();
        let inner = ObservedStore::new(remote.clone(), "default");
        let limiter = Limiter::new(
            "search",
            policy!("5/10s"),
            ObservedStore::new(inner, "stack"),
        );
        block_on(async {
            let _ = limiter.acquire(SECRET).await.unwrap();
            remote.set(Does::Refuse);
            limiter.acquire(SECRET).await.unwrap_err();
            limiter.reset(SECRET).await.unwrap_err();
            remote.set(Does::Contradict);
            limiter.acquire(SECRET).await.unwrap_err();
        });
    });
    let of_stack = metrics
        .iter()
        .filter(|name| name.contains("store=stack"))
        .count();
    let expected = [
        "decisions_total policy=5/10s limit=5/10s operation=acquire outcome=allowed: 1",
        "near_limit_total policy=5/10s limit=5/10s: 0",
        "store_duration_seconds operation=acquire: 3 values",
        "store_duration_seconds operation=reset: 1 values",
        "store_errors_total operation=acquire kind=inconsistent: 1",
        "store_errors_total operation=acquire kind=unavailable: 1",
        "store_errors_total operation=reset kind=unavailable: 1",
    ];
    assert_eq!(of_stack, expected.len());
    assert_eq!(
        metrics
            .into_iter()
            .filter(|name| !name.contains("stack"))
            .collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn a_stack_reports_its_state() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let remote = Faulty::default();
    let stack = || Guarded::builder(remote.clone()).failure_threshold(2);
    let stores = [
        stack().fallback(MemoryStore::new()),
        stack().fail_open(),
        stack().fail_closed(),
        stack().or_error(),
    ];
    let states = || {
        stores.each_ref().map(|store| {
            let values = metrics_of(|| report("redis", store));
            let short = |name: String| {
                name.trim_start_matches("limiter_")
                    .replace(" store=redis", "")
            };
            values
                .into_iter()
                .map(|(name, value)| format!("{} {value}", short(name)))
                .collect::<Vec<_>>()
                .join(", ")
        })
    };
    let shown = |out, logs, outages| {
        format!(
            "breaker_open {out}, carried_dropped_total 0, carried_logs {logs}, lease_decisions_total from=block 0, \
             lease_decisions_total from=store 0, outage {out}, outages_total {outages}"
        )
    };
    assert_eq!(states(), [(); 4].map(|()| shown(0, 0, 0)));

    let calls = async || {
        for store in stores.iter().cycle().take(5 * stores.len()) {
            let called = Limiter::new("search", policy!("50/10s"), store.clone())
                .acquire(SECRET)
                .await;
            assert!(called.is_ok() || std::ptr::eq(store, &stores[3]));
        }
    };
    remote.set(Does::Refuse);
    runtime.block_on(calls());
    assert_eq!(states(), [1, 0, 0, 0].map(|logs| shown(1, logs, 1)));

    remote.set(Does::Answer);
    for _ in 0..2 {
        runtime.block_on(tokio::time::advance(Duration::from_secs(1)));
        runtime.block_on(calls());
    }
    assert_eq!(states(), [(); 4].map(|()| shown(0, 0, 1)));
}
