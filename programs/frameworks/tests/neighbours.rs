//! limiter-tower around tower-http's compression, as its README describes.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{Request, Response};
use exact_limiter::{Limiter, MemoryStore, policy};
use limiter_tower::key::Constant;
use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
use tower::{ServiceBuilder, ServiceExt};
use tower_http::compression::CompressionLayer;

#[tokio::test]
async fn compression_runs_inside_the_limit() {
    let limiter = Limiter::new("search", policy!("1/1m"), MemoryStore::new());
    let rule = Rule::new(limiter, Constant::new("all"), MissingKey::Skip);
    let service = ServiceBuilder::new()
        .layer(LimitLayer::new([rule], StoreFailure::Open))
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(CompressionLayer::new())
        .service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::from("hello ".repeat(100))))
        });
    for (status, encoding, start) in [(200, Some("gzip"), &b"\x1f\x8b"[..]), (429, None, b"{")] {
        let request = Request::get("/").header("accept-encoding", "gzip");
        let request = request.body(Body::empty()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        let found = response.headers().get("content-encoding");
        assert_eq!(found.map(|value| value.to_str().unwrap()), encoding);
        assert_eq!(response.headers()["ratelimit"], r#""search";r=0;t=60"#);
        let body = axum::body::to_bytes(response.into_body(), 1_000).await;
        assert!(body.unwrap().starts_with(start));
    }
}
