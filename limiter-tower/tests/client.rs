//! Clients that wait, over real sockets.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use common::{CLOSED, Server, rule, store};
use futures::future::join_all;
use http::Request;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use limiter_core::IntoPolicy;
use limiter_core::{Limiter, policy};
use limiter_testkit::MockClock;
use limiter_tower::key::{Constant, Host};
use limiter_tower::{Cause, LimitLayer, MissingKey, RequestHead, Rule, WaitError, WaitLayer};
use tower::{Layer, ServiceExt};

/// A layer for a client with a clock that a wait moves on.
fn polite(policy: impl IntoPolicy, deadline: Duration) -> (WaitLayer, MockClock, Limiter) {
    let (store, clock) = store();
    let clock = clock.auto_advancing();
    let limiter = Limiter::new("outgoing", policy, store);
    let rule = Rule::new(limiter.clone(), Host, MissingKey::Skip);
    (WaitLayer::builder([rule], CLOSED, deadline).timer(clock.clone()).build(), clock, limiter)
}

fn request(server: &Server) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{}/", server.address)).body(Empty::new()).unwrap()
}

fn hyper_client() -> Client<hyper_util::client::legacy::connect::HttpConnector, Empty<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn micros(clock: &MockClock) -> u64 {
    limiter_core::Clock::now(clock).as_micros() - 1_700_000_000_000_000
}

#[tokio::test]
async fn requests_wait_until_they_fit_and_the_server_never_denies() {
    let (limit, clock) = rule("server", policy!("3/10s"));
    let server =
        Server::start(Router::new().route("/", get(|| async {})).layer(LimitLayer::new([limit], CLOSED))).await;
    let (store, _) = store();
    let client_rule = Rule::new(
        Limiter::new("outgoing", policy!("3/10s"), limiter_core::WithClock::new(store, clock.clone())),
        Host,
        MissingKey::Skip,
    );
    let timer = clock.clone().auto_advancing();
    let layer = WaitLayer::builder([client_rule], CLOSED, Duration::from_secs(60)).timer(timer).build();
    let client = layer.layer(hyper_client());
    for i in 0..12 {
        let response = client.clone().oneshot(request(&server)).await.unwrap();
        assert_eq!((response.status(), micros(&clock)), (StatusCode::OK, i / 3 * 10_000_000));
    }
}

#[tokio::test]
async fn a_request_that_cannot_fit_before_the_deadline_fails_at_once() {
    let server = Server::start(Router::new().route("/", get(|| async {}))).await;
    let (layer, clock, limiter) = polite(policy!("1/10s"), Duration::from_micros(9_999_999));
    let client = layer.layer(hyper_client());
    client.clone().oneshot(request(&server)).await.unwrap();
    let error = client.clone().oneshot(request(&server)).await.unwrap_err();
    let text = "the request was not sent: denied by outgoing; retry in 10s";
    assert_eq!((error.to_string().as_str(), micros(&clock)), (text, 0));
    clock.advance(Duration::from_micros(1));
    assert_eq!(client.oneshot(request(&server)).await.unwrap().status(), StatusCode::OK);
    let host = server.address.to_string();
    assert_eq!(limiter.status(&host).await.unwrap().used(), 1);
}

/// A server that denies its first requests.
async fn denying(first: usize, status: StatusCode, retry_after: impl Into<String>) -> (Server, Arc<AtomicUsize>) {
    let (seen, retry_after) = (Arc::new(AtomicUsize::new(0)), retry_after.into());
    let counter = Arc::clone(&seen);
    let handler = move || async move {
        let i = counter.fetch_add(1, Ordering::SeqCst);
        if i < first { (status, [("retry-after", retry_after)]).into_response() } else { "done".into_response() }
    };
    (Server::start(Router::new().route("/", get(handler))).await, seen)
}

#[tokio::test]
async fn a_429_is_obeyed_and_the_request_repeated() {
    let (server, seen) = denying(2, StatusCode::TOO_MANY_REQUESTS, "7").await;
    let (layer, clock, _) = polite(policy!("100/1s"), Duration::from_secs(20));
    let response = layer.layer(hyper_client()).oneshot(request(&server)).await.unwrap();
    assert_eq!((response.status(), micros(&clock), seen.load(Ordering::SeqCst)), (StatusCode::OK, 14_000_000, 3));
}

#[tokio::test]
async fn others_are_held_back_and_the_wait_beyond_the_deadline_is_reported() {
    let (server, seen) = denying(1, StatusCode::SERVICE_UNAVAILABLE, "30").await;
    let (other, _) = denying(0, StatusCode::OK, "").await;
    let (layer, clock, limiter) = polite(policy!("100/1m"), Duration::from_secs(20));
    let client = layer.layer(hyper_client());
    let denied = client.clone().oneshot(request(&server)).await.unwrap();
    assert_eq!((denied.status(), micros(&clock)), (StatusCode::SERVICE_UNAVAILABLE, 0), "30 s exceed the deadline");
    let held = client.clone().oneshot(request(&server)).await.unwrap_err();
    let WaitError::Refused(refusal) = held else { panic!("{held}") };
    assert!(matches!(refusal.cause(), Cause::AskedToWait));
    assert_eq!((refusal.retry_after(), seen.load(Ordering::SeqCst)), (Some(Duration::from_secs(30)), 1));
    let host = server.address.to_string();
    assert_eq!(limiter.status(&host).await.unwrap().used(), 1, "what was held back is not charged");
    assert_eq!(client.clone().oneshot(request(&other)).await.unwrap().status(), StatusCode::OK, "another host");
    clock.advance(Duration::from_secs(11));
    assert_eq!(client.oneshot(request(&server)).await.unwrap().status(), StatusCode::OK);
    assert_eq!(micros(&clock), 30_000_000);
}

#[tokio::test]
async fn dates_and_nonsense_in_retry_after() {
    let date = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(100));
    let (server, _) = denying(1, StatusCode::TOO_MANY_REQUESTS, date).await;
    let (layer, clock, _) = polite(policy!("100/1m"), Duration::from_secs(200));
    assert_eq!(layer.layer(hyper_client()).oneshot(request(&server)).await.unwrap().status(), StatusCode::OK);
    assert!((95_000_000..=100_000_000).contains(&micros(&clock)), "{}", micros(&clock));
    for nonsense in ["", "-1", "soon", "1.5", "99999999999999999999", "Mon, 01 Jan 1990 00:00:00 GMT"] {
        let (server, _) = denying(1, StatusCode::TOO_MANY_REQUESTS, nonsense).await;
        let (layer, _, _) = polite(policy!("100/1m"), Duration::from_secs(200));
        let response = layer.layer(hyper_client()).oneshot(request(&server)).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{nonsense}");
    }
}

#[tokio::test]
async fn a_429_is_obeyed_where_no_rule_applies() {
    let (server, seen) = denying(usize::MAX, StatusCode::TOO_MANY_REQUESTS, "7").await;
    let (store, clock) = store();
    let clock = clock.auto_advancing();
    let keyless = |_: &RequestHead<'_>| None::<&str>;
    let rule = Rule::new(Limiter::new("outgoing", policy!("100/1s"), store), keyless, MissingKey::Skip);
    let layer = WaitLayer::builder([rule], CLOSED, Duration::from_secs(20)).timer(clock.clone()).build();
    let response = layer.layer(hyper_client()).oneshot(request(&server)).await.unwrap();
    let seen = seen.load(Ordering::SeqCst);
    assert_eq!((response.status(), micros(&clock), seen), (StatusCode::TOO_MANY_REQUESTS, 14_000_000, 3));
}

#[tokio::test]
async fn a_server_that_always_asks_for_no_wait_is_asked_once_a_second() {
    let (server, seen) = denying(usize::MAX, StatusCode::TOO_MANY_REQUESTS, "0").await;
    let (layer, clock, _) = polite(policy!("100/1m"), Duration::from_secs(3));
    let response = layer.layer(hyper_client()).oneshot(request(&server)).await.unwrap();
    let seen = seen.load(Ordering::SeqCst);
    assert_eq!((response.status(), micros(&clock), seen), (StatusCode::TOO_MANY_REQUESTS, 3_000_000, 4));
}

#[tokio::test]
async fn reqwest_waits_too() {
    let (server, seen) = denying(1, StatusCode::TOO_MANY_REQUESTS, "3").await;
    let (layer, clock, _) = polite(policy!("2/10s"), Duration::from_secs(60));
    let client = layer.layer(reqwest::Client::new());
    let get = || {
        client
            .clone()
            .oneshot(reqwest::Request::new(http::Method::GET, format!("http://{}/", server.address).parse().unwrap()))
    };
    assert_eq!((get().await.unwrap().text().await.unwrap(), micros(&clock)), ("done".to_owned(), 3_000_000));
    assert_eq!(
        (get().await.unwrap().status(), micros(&clock)),
        (StatusCode::OK, 10_000_000),
        "repetitions are charged"
    );
    assert_eq!(seen.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_spread_over_windows_in_real_time() {
    let server = Server::start(Router::new().route("/", get(|| async {}))).await;
    let limiter = Limiter::new("outgoing", policy!("5/200ms"), limiter_memory::MemoryStore::new());
    let rule = Rule::new(limiter, Constant::new("all"), MissingKey::Skip);
    let client = WaitLayer::builder([rule], CLOSED, Duration::from_secs(10)).build().layer(hyper_client());
    let began = std::time::Instant::now();
    let responses = join_all((0..20).map(|_| client.clone().oneshot(request(&server)))).await;
    assert!(responses.iter().all(Result::is_ok));
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
}
