//! A limited HTTP service:
//! `cargo run --example http -- [5/10s] [memory | redis://… | redis+cluster://…] [127.0.0.1:8080]`
//!
//! `GET /` is limited by the header `X-Api-Key`, or else by the client's address. `GET /metrics` is Prometheus text.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use exact_limiter::wrappers::observe::{Metrics, ObservedStore};
use exact_limiter::{Limiter, MemoryStore, Policy, RedisStore, SharedStore};
use http::{HeaderName, StatusCode};
use limiter_tower::key::{Header, PeerAddress, RequestKey};
use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

async fn app(limit: Policy, url: &str) -> Result<Router, exact_limiter::Error> {
    let store: SharedStore = match url {
        "memory" => Arc::new(MemoryStore::new()),
        url => Arc::new(RedisStore::connect(url).await?),
    };
    let store = ObservedStore::new(store, Metrics::new("http"));
    let key = Header::new(API_KEY).or(PeerAddress::new());
    let rule = Rule::new(Limiter::new("http", limit, store), key, MissingKey::Reject(StatusCode::BAD_REQUEST));
    let closed = StoreFailure::Closed { retry_after: Duration::from_secs(1) };
    Ok(Router::new().route("/", get(|| async { "hello\n" })).layer(LimitLayer::new([rule], closed)))
}

async fn serve(app: Router, listener: TcpListener) -> std::io::Result<()> {
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let prometheus = PrometheusBuilder::new().set_buckets(&[0.0001, 0.001, 0.01, 0.1])?.install_recorder()?;
    let mut args = std::env::args().skip(1);
    let mut arg = |default: &str| args.next().unwrap_or_else(|| default.to_owned());
    let (limit, url, address) = (arg("5/10s").parse()?, arg("memory"), arg("127.0.0.1:8080"));
    let app = app(limit, &url).await?.route("/metrics", get(|| async move { prometheus.render() }));
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(serve(app, listener).await?)
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use limiter_testkit::server::Cluster;

    use super::*;

    /// Starts a service, and returns its URL.
    async fn start(limit: &str, store: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(app(limit.parse().unwrap(), store).await.unwrap(), listener));
        url
    }

    /// Returns a status, `Retry-After` and the body.
    async fn ask(url: &str, key: Option<&str>) -> (u16, Option<u64>, String) {
        let request = reqwest::Client::new().get(url);
        let response =
            key.into_iter().fold(request, |request, key| request.header("x-api-key", key)).send().await.unwrap();
        let wait = response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
        (response.status().as_u16(), wait, response.text().await.unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_400_requests_to_three_services_over_a_cluster_exactly_the_maximum_is_served() {
        const MAX: usize = 57;
        let cluster = Cluster::start().unwrap();
        let services = join_all((0..3).map(|_| async { start("57/1h", &cluster.url()).await })).await;
        let replies = join_all((0..400).map(|i| ask(&services[i % 3], Some("customer-7")))).await;
        assert_eq!(replies.iter().filter(|reply| reply.0 == 200).count(), MAX);
        let is_denial = |(status, wait, body): &(u16, Option<u64>, String)| {
            *status == 429 && (1..=3600).contains(&wait.unwrap()) && body.contains("quota-exceeded")
        };
        assert_eq!(replies.iter().filter(|reply| is_denial(reply)).count(), 400 - MAX);
        assert_eq!(ask(&services[0], None).await.0, 200, "another key is another log");
    }
}
