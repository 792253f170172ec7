//! HTTP: Envoy's messages as JSON, the whole API, and health.

mod body;
mod receipt;
mod v1;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;

pub(crate) use self::body::{Refusal, read, require_json};
use crate::health::Health;
use crate::interface::Interface;
use crate::object::Object;
use crate::options::Unhealthy;
use crate::proto::{Code, RateLimitRequest};
use crate::service::Service;

/// What the handlers share.
#[derive(Debug)]
struct Http {
    service: Arc<Service>,
    json: Interface,
    v1: Interface,
    health: Health,
}

/// Returns the routes of the HTTP listener.
pub fn routes(service: Arc<Service>, unhealthy_when: &[Unhealthy]) -> Router {
    let health = Health::new(Arc::clone(&service), unhealthy_when);
    let shared = Http {
        service,
        json: Interface::new("json"),
        v1: Interface::new("v1"),
        health,
    };
    let routes = Router::new()
        .route("/json", post(json))
        .route("/healthz", get(healthz))
        .route("/healthcheck", get(healthz));
    routes
        .route("/v1/acquire_all", post(v1::acquire_all))
        .route("/v1/{op}", post(v1::answer))
        .with_state(Arc::new(shared))
}

/// Why a request is refused for which there is too little memory.
pub(crate) const TOO_MANY: &str = "too many requests in progress";

/// Refuses a request for which there is too little memory.
pub(crate) fn refuse(with_reason: bool) -> Response {
    let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY);
    let response = refusal.into_response();
    match with_reason {
        true => response,
        false => response.into_parts().0.status.into_response(),
    }
}

/// Responds to Envoy's request in the JSON form of proto3.
async fn json(State(http): State<Arc<Http>>, body: Body) -> Result<Response, Refusal> {
    let Object(request): Object<RateLimitRequest> = read(body).await?;
    let answer = http.json.observe(http.service.decide(&request, None)).await;
    let answer =
        answer.map_err(|failure| Refusal::of(failure, StatusCode::INTERNAL_SERVER_ERROR))?;
    let over = answer.overall_code() == Code::OverLimit;
    let status = if over {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    Ok((status, Json(answer)).into_response())
}

/// Responds with 200 even while the store is down, unless `--unhealthy-when` contains that, because the outage choice decides then.
async fn healthz(State(http): State<Arc<Http>>) -> (StatusCode, &'static str) {
    match http.health.state() {
        (true, text) => (StatusCode::OK, text),
        (false, text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    }
}
