//! Bodies of requests, and refusals of bad ones.

use std::fmt::Display;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody, to_bytes};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use limiter_core::Error;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinError;
use tonic::Status;

use crate::proto::MAX_MESSAGE;
use crate::service::Failure;

/// How long a client may take to send a body.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A request that is refused, with the reason as JSON.
#[derive(Debug)]
pub(crate) struct Refusal(StatusCode, String);

impl Refusal {
    pub(crate) fn new(status: StatusCode, reason: impl Display) -> Self {
        Self(status, reason.to_string())
    }

    pub(crate) fn bad(reason: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    /// Refuses a request that cannot be decided. `failed` is for failures of the store.
    pub(crate) fn of(failure: Failure, failed: StatusCode) -> Self {
        match failure {
            Failure::Invalid(text) => Self::bad(text),
            Failure::Store(error) => Self::new(failed, error),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error)
    }
}

impl From<JoinError> for Refusal {
    fn from(error: JoinError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// Refuses a body that is not declared as JSON. A browser sends another type for a foreign page without asking the server.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let declared = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next());
    if declared.is_some_and(|declared| declared.trim().eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "expected content-type: application/json",
    ))
}

/// Reads a body as JSON, regardless of its content type.
pub(crate) async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    let too_large = || {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("expected at most {MAX_MESSAGE} bytes"),
        )
    };
    let too_slow = || {
        Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("expected the body within {TIMEOUT:?}"),
        )
    };
    if body.size_hint().lower() > MAX_MESSAGE as u64 {
        return Err(too_large());
    }
    let bytes = tokio::time::timeout(TIMEOUT, to_bytes(body, MAX_MESSAGE)).await;
    let bytes = bytes.map_err(|_| too_slow())?.map_err(|error| {
        if let Some(status) = find::<Status>(&error) {
            return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, status.message());
        }
        match find::<hyper::Error>(&error) {
            Some(_) => Refusal::bad("the body is incomplete"),
            None => too_large(),
        }
    })?;
    serde_json::from_slice(&bytes).map_err(Refusal::bad)
}

/// Returns this error's cause of a type.
fn find<'e, E: std::error::Error + 'static>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e E> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref())
}
