//! The admin listener: metrics, rules and the page.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;

use crate::http::Refusal;
use crate::metrics::installed;
use crate::page::{self, About};
use crate::rules::Counts;
use crate::service::Service;

/// Returns the routes of the admin listener, without its [guard](crate::guard).
pub(crate) fn routes(service: Arc<Service>, about: About) -> Router {
    Router::new()
        .route("/rules", get(rules))
        .with_state(Arc::clone(&service))
        .merge(routes_of_metrics(Arc::clone(&service)))
        .merge(page::routes(service, about))
}

/// Returns the routes of a listener for metrics alone.
pub(crate) fn routes_of_metrics(service: Arc<Service>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(service)
}

/// Returns all metrics as text.
async fn metrics(State(service): State<Arc<Service>>) -> Result<impl IntoResponse, Refusal> {
    let text = service.render(|service| {
        service.store().report();
        of_rules(service) + &installed().map_or_else(String::new, PrometheusHandle::render)
    });
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text.await?))
}

async fn rules(State(service): State<Arc<Service>>) -> Result<impl IntoResponse, Refusal> {
    let list = |service: &Service| json!({ "rules": page::rules(service) }).to_string();
    Ok(page::json(service.render(list).await?))
}

/// Returns the metrics that are read from the service. Only current rules have metrics.
fn of_rules(service: &Service) -> String {
    const DECISIONS: &str = "limiter_server_decisions_total";
    const HITS: &str = "limiter_server_hits_total";
    const NEAR: &str = "limiter_server_near_limit_total";
    const UNMATCHED: &str = "limiter_server_unmatched_total";
    const DETAILED: &str = "limiter_server_detailed_decisions_total";
    let rules = service.rules();
    let mut out = Text(String::new());
    out.family(DECISIONS, "counter", "Requests by rule and outcome.");
    for rule in rules.with_overrides() {
        for (outcome, count) in rule.counts.by_outcome() {
            let labels = [
                ("domain", &*rule.domain),
                ("rule", &rule.path),
                ("outcome", outcome),
            ];
            out.count(DECISIONS, &labels, count);
        }
    }
    let of_hits = "Requested units by rule, whether allowed or denied.";
    let of_near = "Allowed requests that left at most a fifth of their limit, by rule.";
    let hits: fn(&Counts) -> &AtomicU64 = |counts| &counts.hits;
    for (name, help, counted) in [(HITS, of_hits, hits), (NEAR, of_near, |it| &it.near_limit)] {
        out.family(name, "counter", help);
        for rule in rules.with_overrides() {
            let labels = [("domain", &*rule.domain), ("rule", &rule.path)];
            out.count(name, &labels, counted(&rule.counts).load(Relaxed));
        }
    }
    let help = "Descriptors that match no rule, by domain; empty for an unknown domain.";
    out.family(UNMATCHED, "counter", help);
    out.count(UNMATCHED, &[("domain", "")], service.unknown());
    for rule in rules.with_overrides() {
        let unmatched = rule.counts.unmatched.load(Relaxed);
        out.count(UNMATCHED, &[("domain", &rule.domain)], unmatched);
    }
    let help = "Requests by key and outcome, for rules with detailed metrics.";
    out.family(DETAILED, "counter", help);
    service.detailed().for_each(|domain, key, counts| {
        for (outcome, count) in counts.by_outcome() {
            let labels = [("domain", domain), ("key", key), ("outcome", outcome)];
            out.count(DETAILED, &labels, count);
        }
    });
    let help = "1 while the store responds, 0 while the outage choice decides instead.";
    out.gauge(
        "limiter_server_store_up",
        help,
        usize::from(!service.store().is_away()),
    );
    let help = "Servers of Redis that delete logs when their memory runs short.";
    out.gauge(
        "limiter_server_store_evicts",
        help,
        service.store().evicting().len(),
    );
    let help = "Rules of the current configuration.";
    out.gauge("limiter_server_rules", help, rules.iter().count());
    out.0
}

/// Metrics as text. Writing to a `String` cannot fail.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.family(name, "gauge", help);
        self.series(name, &[], value as u64);
    }

    /// Adds a series, unless it counts what never happened.
    fn count(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        if value > 0 {
            self.series(name, labels, value);
        }
    }

    fn series(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if i == 0 { '{' } else { ',' });
            for char in text.chars() {
                match char {
                    // Readers may take a zero for the end.
                    _ if char.is_control() => _ = write!(self.0, "\\{}", char.escape_default()),
                    '\\' | '"' => self.0.extend(['\\', char]),
                    _ => self.0.push(char),
                }
            }
            self.0.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }
}
