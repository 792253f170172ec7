//! A router that is called in process, and a mock clock behind its limiters.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::handler::Handler;
use axum::routing::get as on_get;
use exact_limiter::MemoryStore;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use limiter_core::{IntoPolicy, Limiter, SharedStore, WithClock};
use limiter_testkit::MockClock;
use limiter_tower::key::{ClientAddress, Constant};
use limiter_tower::{LimitLayer, MissingKey, Respond, Rule, StoreFailure};
pub(crate) use testbed::Does;
use tower::ServiceExt;

pub(crate) const CLOSED: StoreFailure = StoreFailure::Closed {
    retry_after: Duration::from_secs(1),
};
pub(crate) const REJECT: MissingKey = MissingKey::Reject(StatusCode::BAD_REQUEST);

/// A store in memory and its clock.
pub(crate) fn store() -> (SharedStore, MockClock) {
    let clock = MockClock::new();
    let store = WithClock::new(MemoryStore::new(), clock.clone());
    (Arc::new(store), clock)
}

/// A rule with the key `k` for all requests.
pub(crate) fn shared(limiter: &Limiter) -> Rule {
    Rule::new(limiter.clone(), Constant::new("k"), REJECT)
}

/// What counts for the key `k`.
pub(crate) async fn used(limiter: &Limiter) -> u64 {
    limiter.status("k").await.unwrap().used()
}

/// A store that needs a future and fails on command.
pub(crate) type Remote = testbed::Faulty<SharedStore>;

/// A limiter over a [`Remote`] store.
pub(crate) fn remote(name: &str, policy: impl IntoPolicy) -> (Remote, Limiter) {
    let remote = Remote::new(store().0);
    (remote.clone(), Limiter::new(name, policy, Arc::new(remote)))
}

/// A handler behind rules.
pub(crate) fn serve<T: 'static>(
    rules: impl IntoIterator<Item = Rule>,
    handler: impl Handler<T, ()>,
) -> Router {
    let layer = LimitLayer::new(rules, CLOSED);
    Router::new().route("/", on_get(handler)).layer(layer)
}

/// A service behind a layer.
pub(crate) fn hello<R: Respond<Body>>(layer: LimitLayer<R>) -> Router {
    Router::new()
        .route("/", on_get(|| async { "hello" }))
        .layer(layer)
}

/// A rule by peer address on a fresh store, with the store's clock.
pub(crate) fn rule(name: &str, policy: impl IntoPolicy) -> (Rule, MockClock) {
    let (store, clock) = store();
    let limiter = Limiter::new(name, policy, store);
    (Rule::new(limiter, ClientAddress::peer(), REJECT), clock)
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    async fn new(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let status = parts.status.as_u16();
        let headers = parts.headers;
        Self {
            status,
            headers,
            body,
        }
    }

    /// A field, its lines joined.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(name).iter();
        let lines: Vec<&str> = lines.map(|line| line.to_str().unwrap()).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// `RateLimit`, empty if there is none.
    pub(crate) fn limits(&self) -> String {
        self.field("ratelimit").unwrap_or_default()
    }

    /// `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.field("retry-after")
            .map(|seconds| seconds.parse().unwrap())
    }

    /// The body as problem details.
    pub(crate) fn problem(&self) -> serde_json::Value {
        let kind = self.field("content-type");
        assert_eq!(kind.as_deref(), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        problem
    }
}

/// The names of the limits that deny.
pub(crate) fn violated(reply: &Reply) -> Vec<String> {
    let problem = reply.problem();
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], kind);
    assert!(problem["title"].as_str().unwrap().contains("quota"));
    serde_json::from_value(problem["violated-policies"].clone()).unwrap()
}

/// Calls a router in process, as a client at 127.0.0.1.
pub(crate) async fn get_with(router: &Router, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from((Ipv4Addr::LOCALHOST, 80))));
    Reply::new(router.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn get(router: &Router) -> Reply {
    get_with(router, "/", &[]).await
}

/// Waits until a condition holds.
pub(crate) async fn eventually(condition: impl AsyncFn() -> bool) {
    for _ in 0..3000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition did not hold within 30 s");
}
