//! A request costs no allocation but the values of its header fields. This is a program alone because it replaces the allocator.

use std::net::SocketAddr;
use std::time::Duration;

use allocation_counter::measure;
use axum::body::Body;
use exact_limiter::MemoryStore;
use futures::executor::block_on;
use http::{Request, Response, StatusCode};
use limiter_core::{Limiter, policy};
use limiter_tower::key::{ClientAddress, Constant, Header, KeyExtractor, Peer, Trust};
use limiter_tower::{
    Charge, LimitLayer, MissingKey, RateLimitHeaders, ResetFormat, Rule, StoreFailure,
};
use tower::{Layer, Service};

const CLOSED: StoreFailure = StoreFailure::Closed {
    retry_after: Duration::from_secs(1),
};

async fn hello(_: Request<Body>) -> Result<Response<Body>, std::convert::Infallible> {
    let response = Response::builder().header("content-type", "text/plain");
    Ok(response.body(Body::from("hello")).unwrap())
}

/// The allocations of one request, after two others.
fn allocations(mut service: impl Service<Request<Body>, Response = Response<Body>>) -> u64 {
    let mut run = || {
        let request = Request::get("/")
            .extension(Peer(SocketAddr::from(([203, 0, 113, 7], 80))))
            .header("x-api-key", "k7")
            .header("x-forwarded-for", "1.1.1.1, 203.0.113.7");
        let request = request.body(Body::empty()).unwrap();
        let mut response = None;
        let counted = measure(|| response = block_on(service.call(request)).ok());
        assert_eq!(response.unwrap().status(), 200);
        counted.count_total
    };
    (run(), run(), run()).2
}

/// The allocations of the layer alone.
fn added(layer: &LimitLayer) -> u64 {
    allocations(layer.layer(tower::service_fn(hello))) - allocations(tower::service_fn(hello))
}

fn rule(key: impl KeyExtractor) -> Rule {
    let limiter = Limiter::new("search", policy!("1000/10s, 5000/1h"), MemoryStore::new());
    Rule::new(limiter, key, MissingKey::Reject(StatusCode::BAD_REQUEST))
}

#[test]
fn only_header_values_are_allocated() {
    let peer = || rule(ClientAddress::peer());
    let with = |fields| {
        LimitLayer::builder([peer()], CLOSED)
            .headers(fields)
            .build()
    };
    let api_key = Header::new(http::HeaderName::from_static("x-api-key"));
    let combined = (Constant::new("api"), api_key.or(ClientAddress::peer()));
    let proxied = rule(ClientAddress::x_forwarded_for(Trust::Hops(1))).charge(|_| Charge::units(3));
    for (layer, expected) in [
        // `RateLimit-Policy` is shared by all responses, so `RateLimit` is the one value.
        (LimitLayer::new([peer()], CLOSED), 1),
        (with(RateLimitHeaders::none()), 0),
        (LimitLayer::new([rule(combined)], CLOSED), 1),
        (LimitLayer::new([proxied], CLOSED), 1),
        (
            LimitLayer::new([peer(), rule(Constant::new("all"))], CLOSED),
            1,
        ),
    ] {
        assert_eq!(added(&layer), expected);
    }
    // `http` takes two allocations for a number, and three fields outgrow the list that is held in place.
    let fields = RateLimitHeaders::none().x_rate_limit(ResetFormat::SecondsFromNow);
    let numbers = added(&with(fields));
    assert!(numbers <= 3 * 2 + 1, "{numbers}");
}
