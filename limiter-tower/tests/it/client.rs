//! Clients that wait, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use futures::future::join_all;
use limiter_core::{IntoPolicy, Limiter, WithClock, policy};
use limiter_testkit::MockClock;
use limiter_tower::key::{Constant, Host, RequestKey};
use limiter_tower::{Cause, LimitLayer, MissingKey, RequestHead, Rule, WaitError, WaitLayer};
use tower::{Layer, ServiceExt};

use crate::common::{CLOSED, Server, hello, hyper_client, rule, store};

/// A layer for a client with a clock that a wait moves on.
fn polite_by(key: impl RequestKey, policy: impl IntoPolicy, deadline: Duration) -> (WaitLayer, MockClock, Limiter) {
    let (store, clock) = store();
    let clock = clock.auto_advancing();
    let limiter = Limiter::new("outgoing", policy, store);
    let rule = Rule::new(limiter.clone(), key, MissingKey::Skip);
    (WaitLayer::builder([rule], CLOSED, deadline).timer(clock.clone()).build(), clock, limiter)
}

fn polite(policy: impl IntoPolicy, deadline: Duration) -> (WaitLayer, MockClock, Limiter) {
    polite_by(Host, policy, deadline)
}

fn unlimited() -> Router {
    hello(LimitLayer::new([], CLOSED))
}

fn micros(clock: &MockClock) -> u64 {
    limiter_core::Clock::now(clock).as_micros() - 1_700_000_000_000_000
}

#[tokio::test]
async fn requests_wait_until_they_fit_and_the_server_never_denies() {
    let (limit, clock) = rule("server", policy!("3/10s"));
    let server = Server::start(hello(LimitLayer::new([limit], CLOSED))).await;
    let outgoing = Limiter::new("outgoing", policy!("3/10s"), WithClock::new(store().0, clock.clone()));
    let rule = Rule::new(outgoing, Host, MissingKey::Skip);
    let timer = clock.clone().auto_advancing();
    let layer = WaitLayer::builder([rule], CLOSED, Duration::from_secs(60)).timer(timer).build();
    let client = layer.layer(hyper_client());
    for i in 0..12 {
        let response = client.clone().oneshot(server.request()).await.unwrap();
        assert_eq!((response.status(), micros(&clock)), (StatusCode::OK, i / 3 * 10_000_000));
    }
}

#[tokio::test]
async fn a_request_that_cannot_fit_before_the_deadline_fails_at_once() {
    let server = Server::start(unlimited()).await;
    let (layer, clock, limiter) = polite(policy!("1/10s"), Duration::from_micros(9_999_999));
    let client = layer.layer(hyper_client());
    client.clone().oneshot(server.request()).await.unwrap();
    let error = client.clone().oneshot(server.request()).await.unwrap_err();
    let text = "the request was not sent: denied by outgoing; retry in 10s";
    assert_eq!((error.to_string().as_str(), micros(&clock)), (text, 0));
    clock.advance(Duration::from_micros(1));
    assert_eq!(client.oneshot(server.request()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(limiter.status(&server.address.to_string()).await.unwrap().used(), 1);
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
    const ALWAYS: usize = usize::MAX;
    for (first, retry_after, deadline, status, waited, requests) in [
        (2, "7", 20, 200, 14, 3),
        (ALWAYS, "7", 20, 429, 14, 3),
        // A server that always asks for no wait is asked once a second.
        (ALWAYS, "0", 3, 429, 3, 4),
        (1, "", 200, 429, 0, 1),
        (1, "-1", 200, 429, 0, 1),
        (1, "soon", 200, 429, 0, 1),
        (1, "1.5", 200, 429, 0, 1),
        (1, "99999999999999999999", 200, 429, 0, 1),
        (1, "Mon, 01 Jan 1990 00:00:00 GMT", 200, 429, 0, 1),
    ] {
        for by_host in [true, false] {
            let (server, seen) = denying(first, StatusCode::TOO_MANY_REQUESTS, retry_after).await;
            // Also where no rule applies.
            let key = move |head: &RequestHead<'_>| head.host().filter(|_| by_host).map(str::to_owned);
            let (layer, clock, _) = polite_by(key, policy!("100/1s"), Duration::from_secs(deadline));
            let response = layer.layer(hyper_client()).oneshot(server.request()).await.unwrap();
            let found = (response.status().as_u16(), micros(&clock), seen.load(Ordering::SeqCst));
            assert_eq!(found, (status, waited * 1_000_000, requests), "{retry_after:?}, by host: {by_host}");
        }
    }
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(1_000));
    let (server, _) = denying(1, StatusCode::TOO_MANY_REQUESTS, date).await;
    let (layer, clock, _) = polite(policy!("100/1m"), Duration::from_secs(2_000));
    assert_eq!(layer.layer(hyper_client()).oneshot(server.request()).await.unwrap().status(), StatusCode::OK);
    assert!((900_000_000..=1_000_000_000).contains(&micros(&clock)), "{}", micros(&clock));
}

#[tokio::test]
async fn others_are_held_back_and_the_wait_beyond_the_deadline_is_reported() {
    let (server, seen) = denying(1, StatusCode::SERVICE_UNAVAILABLE, "30").await;
    let other = Server::start(unlimited()).await;
    let (layer, clock, limiter) = polite(policy!("100/1m"), Duration::from_secs(20));
    let client = layer.layer(hyper_client());
    let denied = client.clone().oneshot(server.request()).await.unwrap();
    assert_eq!((denied.status(), micros(&clock)), (StatusCode::SERVICE_UNAVAILABLE, 0), "30 s exceed the deadline");
    let held = client.clone().oneshot(server.request()).await.unwrap_err();
    let WaitError::Refused(refusal) = held else { panic!("{held}") };
    assert!(matches!(refusal.cause(), Cause::AskedToWait));
    assert_eq!((refusal.retry_after(), seen.load(Ordering::SeqCst)), (Some(Duration::from_secs(30)), 1));
    let used = limiter.status(&server.address.to_string()).await.unwrap().used();
    assert_eq!(used, 1, "what was held back is not charged");
    assert_eq!(client.clone().oneshot(other.request()).await.unwrap().status(), StatusCode::OK, "another host");
    clock.advance(Duration::from_secs(11));
    assert_eq!(client.oneshot(server.request()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(micros(&clock), 30_000_000);
}

#[tokio::test]
async fn a_host_that_asks_for_centuries_is_asked_again_after_an_hour() {
    let (server, seen) = denying(1, StatusCode::TOO_MANY_REQUESTS, "99999999999").await;
    let (layer, clock, _) = polite(policy!("100/1m"), Duration::from_secs(20));
    let client = layer.layer(hyper_client());
    assert_eq!(client.clone().oneshot(server.request()).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    clock.advance(Duration::from_secs(3_579));
    let held = client.clone().oneshot(server.request()).await.unwrap_err();
    assert_eq!(held.to_string(), "the request was not sent: the server asked to wait; retry in 21s");
    clock.advance(Duration::from_secs(21));
    assert_eq!(client.oneshot(server.request()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn reqwest_waits_too() {
    let (server, seen) = denying(1, StatusCode::TOO_MANY_REQUESTS, "3").await;
    let (layer, clock, _) = polite(policy!("2/10s"), Duration::from_secs(60));
    let client = layer.layer(reqwest::Client::new());
    let url: reqwest::Url = format!("http://{}/", server.address).parse().unwrap();
    // Repetitions are charged.
    for waited in [3_000_000, 10_000_000] {
        let request = reqwest::Request::new(http::Method::GET, url.clone());
        let response = client.clone().oneshot(request).await.unwrap();
        assert_eq!((response.text().await.unwrap().as_str(), micros(&clock)), ("done", waited));
    }
    assert_eq!(seen.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_spread_over_windows_in_real_time() {
    let server = Server::start(unlimited()).await;
    let limiter = Limiter::new("outgoing", policy!("5/200ms"), limiter::MemoryStore::new());
    let rule = Rule::new(limiter, Constant::new("all"), MissingKey::Skip);
    let client = WaitLayer::builder([rule], CLOSED, Duration::from_secs(60)).build().layer(hyper_client());
    let began = std::time::Instant::now();
    let responses = join_all((0..20).map(|_| client.clone().oneshot(server.request()))).await;
    assert!(responses.iter().all(Result::is_ok));
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
}
