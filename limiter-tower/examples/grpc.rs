//! A limited gRPC service: `cargo run --example grpc -- [127.0.0.1:50051]`
//!
//! It serves the standard health service, three calls in ten seconds for each client address. Further calls get
//! `RESOURCE_EXHAUSTED`, with the time to wait in `google.rpc.RetryInfo`.

use std::net::SocketAddr;
use std::time::Duration;

use exact_limiter::store::WindowStore;
use exact_limiter::{Limiter, MemoryStore, policy};
use http::StatusCode;
use limiter_tower::key::ClientAddress;
use limiter_tower::{GrpcStatus, LimitLayer, MissingKey, Rule, StoreFailure};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

fn layer(store: impl WindowStore) -> LimitLayer<GrpcStatus> {
    let limiter = Limiter::new("health", policy!("3/10s"), store);
    let rule = Rule::new(
        limiter,
        ClientAddress::peer(),
        MissingKey::Reject(StatusCode::BAD_REQUEST),
    );
    let closed = StoreFailure::Closed {
        retry_after: Duration::from_secs(1),
    };
    LimitLayer::builder([rule], closed)
        .respond_with(GrpcStatus)
        .build()
}

async fn serve(
    listener: TcpListener,
    store: impl WindowStore,
) -> Result<(), tonic::transport::Error> {
    let (_, health) = tonic_health::server::health_reporter();
    Server::builder()
        .layer(layer(store))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: SocketAddr = std::env::args()
        .nth(1)
        .as_deref()
        .unwrap_or("127.0.0.1:50051")
        .parse()?;
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(serve(listener, MemoryStore::new()).await?)
}

#[cfg(test)]
mod tests {
    use exact_limiter::time::WithClock;
    use limiter_testkit::MockClock;
    use tonic::transport::Endpoint;
    use tonic::{Code, Request};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_types::StatusExt;

    use super::*;

    #[tokio::test]
    async fn denied_calls_carry_the_exact_wait() {
        let clock = MockClock::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(
            listener,
            WithClock::new(MemoryStore::new(), clock.clone()),
        ));
        let mut client =
            HealthClient::new(Endpoint::new(address).unwrap().connect().await.unwrap());
        for left in (0..3).rev() {
            let reply = client
                .check(Request::new(HealthCheckRequest::default()))
                .await
                .unwrap();
            let field = reply.metadata().get("ratelimit").unwrap().to_str().unwrap();
            assert_eq!(field, format!("\"health\";r={left};t=10"));
        }
        clock.advance(Duration::from_micros(9_800_001));
        let status = client
            .check(Request::new(HealthCheckRequest::default()))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::ResourceExhausted, "quota exceeded")
        );
        let wait = status
            .get_details_retry_info()
            .unwrap()
            .retry_delay
            .unwrap();
        assert_eq!(wait, Duration::from_micros(199_999));
        assert_eq!(
            status.get_details_quota_failure().unwrap().violations[0].subject,
            "health"
        );
        assert_eq!(status.metadata().get("retry-after").unwrap(), "1");
        clock.advance(wait);
        assert!(
            client
                .check(Request::new(HealthCheckRequest::default()))
                .await
                .is_ok()
        );
    }
}
