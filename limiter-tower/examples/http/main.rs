//! A limited HTTP service:
//! `cargo run --example http -- --listen 127.0.0.1:8080 --limit 5/10s [--store redis://… | redis+cluster://…]`
//!
//! `GET /` is limited by the header `X-Api-Key`, or else by the client's address. `GET /metrics` is Prometheus text. Ctrl-C ends
//! the service after the requests that are running.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use clap::Parser;
use futures::FutureExt;
use http::{HeaderName, StatusCode};
use limiter::wrappers::observe::{Metrics, ObservedStore, Tracing};
use limiter::{Limiter, MemoryStore, Policy, RedisStore, SharedStore};
use limiter_tower::key::{Header, PeerAddress, RequestKey};
use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

/// A limited HTTP service.
#[derive(Parser)]
struct Args {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: String,
    /// The limits of each key, such as "5/10s, 100/1h".
    #[arg(long, default_value = "5/10s")]
    limit: Policy,
    /// "memory", redis://… or redis+cluster://…
    #[arg(long, default_value = "memory")]
    store: String,
}

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Bounds of the histogram of the store's latency, in seconds.
const BUCKETS: [f64; 8] = [0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5];

/// The store, and how to collect its metrics.
async fn open(url: String, metrics: PrometheusHandle) -> anyhow::Result<(SharedStore, impl Fn() -> String + Clone)> {
    let measured = Metrics::new();
    let observer = (measured, Tracing::new());
    let (memory, store): (_, SharedStore) = if url == "memory" {
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), observer));
        (Some(Arc::clone(&store)), Arc::new(store))
    } else {
        (None, Arc::new(ObservedStore::new(RedisStore::connect(&url).await?, observer)))
    };
    let render = move || {
        if let Some(store) = &memory {
            measured.report_keys(store.store().len());
        }
        metrics.run_upkeep();
        metrics.render()
    };
    Ok((store, render))
}

fn app(limiter: Limiter) -> Router {
    let key = Header::new(API_KEY).or(PeerAddress::new());
    let rule = Rule::new(limiter, key, MissingKey::Reject(StatusCode::BAD_REQUEST));
    let closed = StoreFailure::Closed { retry_after: Duration::from_secs(1) };
    Router::new().route("/", get(|| async { "hello\n" })).layer(LimitLayer::new([rule], closed))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    let (store, render) = open(args.store, recorder).await?;
    let app = app(Limiter::new("http", args.limit, store)).route("/metrics", get(|| async move { render() }));
    let listener = TcpListener::bind(&args.listen).await?;
    let mut interrupted = Box::pin(interrupted());
    // The first poll installs the handler, before anybody knows the address.
    let _ = interrupted.as_mut().now_or_never();
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(interrupted).await?;
    println!("ended");
    Ok(())
}

async fn interrupted() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        eprintln!("cannot wait for Ctrl-C: {error}");
        std::future::pending::<()>().await;
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::INFO);
    filter.with_writer(std::io::stderr).init();
    run(Args::parse()).await
}
