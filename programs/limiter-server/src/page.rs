//! The page of the admin listener, and the JSON that it reads.
//!
//! `page.html` is one file without external assets. Its policy allows only its own script and connections to its server.

mod key;
mod state;

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use base64::prelude::{BASE64_STANDARD, Engine};
use sha2::{Digest, Sha256};

pub(crate) use self::state::rules;
use crate::service::Service;
use crate::store::OnOutage;

const PAGE: &str = include_str!("page.html");

/// The content security policy, which identifies the script and the style by their hashes.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |start, end| {
        let text = PAGE
            .split_once(start)
            .and_then(|(_, rest)| rest.split_once(end))
            .map_or("", |(text, _)| text);
        BASE64_STANDARD.encode(Sha256::digest(text))
    };
    let script = hash("<script type=\"module\">", "</script>");
    let style = hash("<style>", "</style>");
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The page's data about the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    store: &'static str,
    outage: OnOutage,
    started: Instant,
}

impl About {
    /// Returns the page's data about a server that starts now.
    pub(crate) fn new(store: &'static str, outage: OnOutage) -> Self {
        Self {
            store,
            outage,
            started: Instant::now(),
        }
    }
}

/// Returns the routes of the page, for the admin listener.
pub(crate) fn routes(service: Arc<Service>, about: About) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route(
            "/page/state",
            get(move |service| state::state(service, about)),
        )
        .route("/page/key", get(key::show))
        .route("/page/find", get(key::find))
        .route("/reset", post(key::reset))
        .with_state(service)
}

/// Returns a response of rendered JSON.
pub(crate) fn json(text: String) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text)
}

/// Adds the header fields of every response of the admin listener.
pub(crate) async fn with_headers(mut response: Response) -> Response {
    let fixed = [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    let headers = response.headers_mut();
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    response
}
