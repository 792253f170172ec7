//! The admin listener: metrics, rules and the page.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use http::header::CONTENT_TYPE;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::{Value, json};

use crate::metrics::{install, label};
use crate::page::{self, About};
use crate::service::Service;

const DECISIONS: &str = "limiter_server_decisions_total";
const HITS: &str = "limiter_server_hits_total";
const DETAILED: &str = "limiter_server_detailed_decisions_total";
const STORE_UP: &str = "limiter_server_store_up";
const RULES: &str = "limiter_server_rules";

/// Returns the routes of the admin listener, without its [guard](crate::guard).
pub(crate) fn routes(service: Arc<Service>, about: About) -> Router {
    let routes = Router::new()
        .route("/metrics", get(render))
        .route("/rules", get(list));
    routes
        .with_state(Arc::clone(&service))
        .merge(page::routes(service, about))
}

/// Returns all metrics as text.
async fn render(State(service): State<Arc<Service>>) -> impl IntoResponse {
    // The series of rules start anew each time, so that those of removed rules disappear.
    let current = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&current, || record(&service));
    service.store().report();
    let text =
        current.handle().render() + &install().map_or_else(String::new, PrometheusHandle::render);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

async fn list(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(json!({ "rules": page::rules(&service) }))
}

fn record(service: &Service) {
    describe_counter!(DECISIONS, Unit::Count, "Requests by rule and outcome.");
    describe_counter!(
        HITS,
        Unit::Count,
        "Requested units by rule, whether allowed or denied."
    );
    describe_counter!(
        DETAILED,
        Unit::Count,
        "Requests by key and outcome, for rules with detailed metrics."
    );
    describe_gauge!(
        STORE_UP,
        Unit::Count,
        "1 while the store responds, 0 while the outage choice decides instead."
    );
    describe_gauge!(RULES, Unit::Count, "Rules of the current configuration.");
    let rules = service.rules();
    for rule in rules.with_overrides() {
        let hits = rule.counts.hits.load(Relaxed);
        counter!(HITS, "domain" => label(&rule.domain), "rule" => label(&rule.path)).absolute(hits);
        for (outcome, count) in rule.counts.by_outcome() {
            let (domain, rule) = (label(&rule.domain), label(&rule.path));
            counter!(DECISIONS, "domain" => domain, "rule" => rule, "outcome" => outcome)
                .absolute(count);
        }
    }
    service.detailed().for_each(|domain, key, counts| {
        for (outcome, count) in counts.by_outcome() {
            let (domain, key) = (label(domain), label(key));
            counter!(DETAILED, "domain" => domain, "key" => key, "outcome" => outcome)
                .absolute(count);
        }
    });
    gauge!(RULES).set(rules.iter().count() as f64);
    gauge!(STORE_UP).set(f64::from(u8::from(!service.store().is_away())));
}
