//! Responses to refused requests.

use std::fmt::Write;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::headers::add_retry_after;
use crate::rejection::{Cause, Rejection};

/// Builds the response to a refused request. Closures `Fn(&Rejection) -> Response<B>` implement it.
///
/// The layer adds `Retry-After` and the rate limit fields unless the response has them.
pub trait Respond<B>: Send + Sync + 'static {
    /// Returns the response.
    fn respond(&self, rejection: &Rejection) -> Response<B>;
}

impl<B, F: Fn(&Rejection) -> Response<B> + Send + Sync + 'static> Respond<B> for F {
    fn respond(&self, rejection: &Rejection) -> Response<B> {
        self(rejection)
    }
}

/// Problem details (RFC 9457, `application/problem+json`) and `Retry-After`, for every body that is made of bytes.
///
/// | cause | status | type |
/// |---|---|---|
/// | a denial | 429 | `quota-exceeded`, with `violated-policies` |
/// | a cost that exceeds a limit | 413, without `Retry-After` | `quota-exceeded`, with `violated-policies` |
/// | the store failed | 503, without `Retry-After` if no retry mends it | `temporary-reduced-capacity` |
/// | no key | the one in [`MissingKey::Reject`](crate::MissingKey::Reject) | `about:blank`, with a `detail` |
#[derive(Clone, Copy, Debug, Default)]
pub struct Problem;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

impl<B: From<Vec<u8>>> Respond<B> for Problem {
    fn respond(&self, rejection: &Rejection) -> Response<B> {
        let mut response = Response::new(B::from(problem(rejection).into_bytes()));
        *response.status_mut() = rejection.status();
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        add_retry_after(rejection.retry_after(), response.headers_mut());
        response
    }
}

impl Rejection {
    /// Returns the layer's response: `respond`'s response to the rejection, with `Retry-After` and the rate limit fields.
    pub fn response<B>(self, respond: &impl Respond<B>) -> Response<B> {
        let mut response = respond.respond(&self);
        add_retry_after(self.retry_after(), response.headers_mut());
        self.fields.add(response.status(), response.headers_mut());
        response
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        self.response(&Problem)
    }
}

fn problem(rejection: &Rejection) -> String {
    const REGISTRY: &str = "https://iana.org/assignments/http-problem-types";
    let status = rejection.status();
    let mut json = String::with_capacity(192);
    let (kind, title) = match rejection.cause() {
        Cause::Denied => (
            "#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Cause::CostExceedsLimit => (
            "#quota-exceeded",
            "Request costs more than the assigned quota",
        ),
        Cause::StoreFailed(_) => (
            "#temporary-reduced-capacity",
            "Request cannot be satisfied while capacity is temporarily reduced",
        ),
        Cause::MissingKey(_) => (
            "",
            status
                .canonical_reason()
                .unwrap_or("Request has no rate limit key"),
        ),
    };
    let kind = if kind.is_empty() {
        "about:blank".to_owned()
    } else {
        format!("{REGISTRY}{kind}")
    };
    // Writing to a `String` cannot fail.
    let _ = write!(
        json,
        "{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{}",
        status.as_u16()
    );
    if matches!(rejection.cause(), Cause::Denied | Cause::CostExceedsLimit) {
        json.push_str(",\"violated-policies\":[");
        for (i, name) in rejection.violated_policies().iter().enumerate() {
            // Names are printable ASCII, so only these two need an escape.
            let name = name.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(json, "{}\"{name}\"", if i > 0 { "," } else { "" });
        }
        json.push(']');
    }
    if matches!(rejection.cause(), Cause::MissingKey(_)) {
        json.push_str(",\"detail\":\"the request has no rate limit key");
        // Most often, the server was started without `into_make_service_with_connect_info`.
        if ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status) {
            json.push_str(
                "; a limit by client address needs the connection's address in the request's extensions",
            );
        }
        json.push('"');
    }
    json.push('}');
    json
}
