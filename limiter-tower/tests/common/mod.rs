//! A server on a real socket, a mock clock behind its limiters, and a client.

#![allow(dead_code, reason = "each test file uses a part of this")]

pub(crate) mod stores;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use limiter_core::IntoPolicy;
use limiter_core::{Limiter, SharedStore, WithClock};
use limiter_memory::MemoryStore;
use limiter_testkit::MockClock;
use limiter_tower::key::PeerAddress;
use limiter_tower::{MissingKey, Rule, StoreFailure};

pub(crate) const CLOSED: StoreFailure = StoreFailure::Closed { retry_after: Duration::from_secs(1) };
pub(crate) const REJECT: MissingKey = MissingKey::Reject(StatusCode::BAD_REQUEST);

/// A store in memory and its clock.
pub(crate) fn store() -> (SharedStore, MockClock) {
    let clock = MockClock::new();
    (Arc::new(WithClock::new(MemoryStore::new(), clock.clone())), clock)
}

/// A rule by peer address on a fresh store, with the store's clock.
pub(crate) fn rule(name: &str, policy: impl IntoPolicy) -> (Rule, MockClock) {
    let (store, clock) = store();
    (Rule::new(Limiter::new(name, policy, store), PeerAddress::new(), REJECT), clock)
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    /// A field, its lines joined.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let lines: Vec<&str> = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.field("retry-after").map(|value| value.parse().unwrap())
    }
}

/// A server on a real socket.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Server {
    pub(crate) async fn start(router: Router) -> Self {
        Self::with_client(router, Client::builder(TokioExecutor::new()).build_http()).await
    }

    /// A server that is asked in HTTP/2.
    pub(crate) async fn start_http2(router: Router) -> Self {
        Self::with_client(router, Client::builder(TokioExecutor::new()).http2_only(true).build_http()).await
    }

    async fn with_client(router: Router, client: Client<HttpConnector, Empty<Bytes>>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, client }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::get(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Empty::new()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }
}

/// A request from an address, without a socket.
pub(crate) fn request_from(peer: &str) -> Request<Body> {
    let mut request = Request::get("/").body(Body::empty()).unwrap();
    let address: SocketAddr = peer.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(address));
    request
}
