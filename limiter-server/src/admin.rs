//! The admin listener: metrics, rules, resets and the page.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{Refusal, read};
use crate::service::Service;
use crate::{metrics, page};

/// Returns the routes of the admin listener, without its [guard](crate::guard).
pub(crate) fn routes(service: Arc<Service>) -> Router {
    let routes = Router::new().route("/metrics", get(render)).route("/rules", get(list)).route("/reset", post(reset));
    routes.with_state(service)
}

async fn render(State(service): State<Arc<Service>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::render(&service))
}

async fn list(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(json!({ "rules": page::rules(&service) }))
}

/// The key to unblock, as a request would name it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetRequest {
    domain: String,
    descriptor: Vec<(String, String)>,
}

/// Removes the log of a descriptor's key.
async fn reset(State(service): State<Arc<Service>>, body: Body) -> Result<Json<Value>, Refusal> {
    let ResetRequest { domain, descriptor } = read(body).await?;
    let entries: Vec<(&str, &str)> = descriptor.iter().map(|(key, value)| (&**key, &**value)).collect();
    let rules = service.rules();
    let found = rules.find(&domain, &entries);
    let Some(found) = found.filter(|found| found.rule.limiter().is_some()) else {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "no rule limits this descriptor"));
    };
    let existed = found.rule.reset(found.key.as_ref()).await?;
    service.denied().forget(found.rule, found.key.as_ref());
    Ok(Json(json!({ "rule": found.rule.path, "existed": existed })))
}
