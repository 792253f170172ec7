//! The dashboard queries what is emitted, with labels that exist.

use std::collections::{BTreeMap, BTreeSet};

use crate::metrics::{block_on, metrics_of, traffic};
use crate::scene::{Does, Faulty};
use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_wrappers::Guarded;
use limiter_wrappers::observe::{ObservedStore, report, report_keys};
use serde_json::Value;

/// Returns the labels of each metric that exists.
fn emitted() -> BTreeMap<String, BTreeSet<String>> {
    let metrics = metrics_of(|| {
        let limiter = |store| {
            Limiter::new(
                "search",
                policy!("5/10s"),
                ObservedStore::new(store, "default"),
            )
        };
        report_keys("default", 1);
        block_on(async {
            let remote = Faulty::default();
            traffic(&limiter(remote.clone())).await;
            remote.set(Does::Corrupt);
            limiter(remote.clone()).acquire("key").await.unwrap_err();
            report(
                "default",
                &Guarded::builder(remote).fallback(MemoryStore::new()),
            );
        });
    });
    let mut emitted = BTreeMap::<String, BTreeSet<String>>::new();
    for series in metrics.keys() {
        let mut parts = series.split(' ');
        let labels = emitted
            .entry(parts.next().unwrap_or_default().to_owned())
            .or_default();
        labels.extend(parts.filter_map(|label| Some(label.split_once('=')?.0.to_owned())));
    }
    emitted
}

/// Checks a query, and returns the metrics in it.
fn metrics_in<'a>(
    query: &str,
    emitted: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a str> {
    let ends = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let grouped = query
        .split("by (")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .flat_map(|list| list.split(", "));
    let matched = query.split('=').map(|part| {
        part.trim_end_matches('!')
            .rsplit(ends)
            .next()
            .unwrap_or_default()
    });
    let matched = matched.take(query.matches('=').count());
    let labels: Vec<&str> = grouped
        .chain(matched)
        .filter(|label| !["le", ""].contains(label))
        .collect();
    let words = query
        .match_indices("limiter_")
        .map(|(start, _)| query[start..].split(ends).next().unwrap_or_default());
    let found = words.map(|word| {
        let name = ["_bucket", "_count", ""].iter().find_map(|suffix| {
            let name = word.strip_suffix(suffix)?;
            emitted
                .get_key_value(name)
                .filter(|_| suffix.is_empty() || name.ends_with("_seconds"))
        });
        let (name, known) = name.unwrap_or_else(|| panic!("nothing emits {word}, in {query}"));
        assert!(
            labels.iter().all(|label| known.contains(*label)),
            "{labels:?} of {word}, in {query}"
        );
        name.as_str()
    });
    found.collect()
}

#[test]
fn the_dashboard_queries_every_metric_that_is_emitted_and_no_other() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/grafana/dashboard.json"
    ))
    .unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let emitted = emitted();
    let mut queried = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let place = &panel["gridPos"];
        assert!(
            panel["title"]
                .as_str()
                .is_some_and(|title| !title.is_empty()),
            "{panel}"
        );
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(
            places.insert((place["x"].as_u64().unwrap(), place["y"].as_u64().unwrap())),
            "{panel}"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{target}");
            queried.extend(metrics_in(target["expr"].as_str().unwrap(), &emitted));
        }
    }
    assert_eq!(queried, emitted.keys().map(String::as_str).collect());

    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["datasource", "store", "limiter"]);
    for query in variables
        .iter()
        .filter_map(|variable| variable["query"]["query"].as_str())
    {
        assert_eq!(metrics_in(query, &emitted).len(), 1, "{query}");
    }
}

#[test]
fn the_alert_rules_query_metrics_that_are_emitted() {
    let rules = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/grafana/alerts.yaml"
    ))
    .unwrap();
    let emitted = emitted();
    // limiter-server emits its own.
    let queries = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let queries: Vec<_> = queries
        .filter(|query| !query.contains("limiter_server_"))
        .collect();
    assert!(
        !queries.is_empty()
            && queries
                .iter()
                .all(|query| metrics_in(query, &emitted).len() == 1),
        "{queries:?}"
    );
}
