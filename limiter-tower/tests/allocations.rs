//! A request costs no allocation but the values of its header fields.

mod common;

use allocation_counter::measure;
use axum::body::Body;
use common::{CLOSED, REJECT, request_from, store};
use futures::executor::block_on;
use http::{Request, Response};
use limiter_core::{Limiter, policy};
use limiter_tower::key::{ClientAddress, Constant, Header, Method, PeerAddress, RequestKey, Trust};
use limiter_tower::{Charge, Fields, LimitLayer, Reset, Rule};
use tower::{Layer, Service};

async fn hello(_: Request<Body>) -> Result<Response<Body>, std::convert::Infallible> {
    Ok(Response::builder().header("content-type", "text/plain").body(Body::from("hello")).unwrap())
}

/// The allocations of one request, after a first one.
fn allocations(mut service: impl Service<Request<Body>, Response = Response<Body>>) -> u64 {
    let mut run = |expect_status| {
        let mut request = request_from("203.0.113.7:80");
        request.headers_mut().insert("x-api-key", "k7".parse().unwrap());
        request.headers_mut().insert("x-forwarded-for", "1.1.1.1, 203.0.113.7".parse().unwrap());
        let mut response = None;
        let counted = measure(|| response = block_on(service.call(request)).ok());
        assert_eq!(response.unwrap().status(), expect_status);
        counted.count_total
    };
    run(200);
    run(200);
    run(200)
}

/// The allocations of the layer alone.
fn added(layer: &LimitLayer) -> u64 {
    allocations(layer.layer(tower::service_fn(hello))) - allocations(tower::service_fn(hello))
}

#[test]
fn only_header_values_are_allocated() {
    let (store, _) = store();
    let limiter = |name| Limiter::new(name, policy!("1000/10s, 5000/1h"), store.clone());
    let rule = |name| Rule::new(limiter(name), PeerAddress::new(), REJECT);
    // `RateLimit-Policy` is shared by all responses, so `RateLimit` is the one value.
    assert_eq!(added(&LimitLayer::new([rule("one")], CLOSED)), 1);
    assert_eq!(added(&LimitLayer::builder([rule("none")], CLOSED).fields(Fields::none()).build()), 0);
    let keys = (Method, Header::new(http::HeaderName::from_static("x-api-key")).or(PeerAddress::new()));
    assert_eq!(added(&LimitLayer::new([Rule::new(limiter("combined"), keys, REJECT)], CLOSED)), 1);
    let proxied = ClientAddress::x_forwarded_for(Trust::Hops(1));
    let charged = Rule::new(limiter("charged"), proxied, REJECT).charge(|_| Charge::units(3));
    assert_eq!(added(&LimitLayer::new([charged], CLOSED)), 1);
    let all = Rule::new(limiter("all"), Constant::new("all"), REJECT);
    assert_eq!(added(&LimitLayer::new([rule("several"), all], CLOSED)), 1);
}

#[test]
fn numbers_of_older_forms_are_values_too() {
    let (store, _) = store();
    let rule = Rule::new(Limiter::new("x", policy!("1000/10s"), store), PeerAddress::new(), REJECT);
    let fields = Fields::none().x_rate_limit(Reset::SecondsFromNow);
    let added = added(&LimitLayer::builder([rule], CLOSED).fields(fields).build());
    // `http` takes two allocations for a number, and three fields outgrow the list that is held in place.
    assert!(added <= 3 * 2 + 1, "{added}");
}
