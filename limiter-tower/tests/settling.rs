//! Charging what a request turned out to cost.

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, body::Body};
use common::stores::{Mood, Remote};
use common::{CLOSED, REJECT, Server, request_from, store};
use limiter_core::IntoPolicy;
use limiter_core::{Limiter, SharedStore, policy};
use limiter_tower::key::Constant;
use limiter_tower::{ActualCost, Charge, Charges, LimitLayer, Rule};
use tower::ServiceExt;

fn limiter(policy: impl IntoPolicy) -> (Limiter, Remote<SharedStore>) {
    let remote = Remote::new(store().0);
    (Limiter::new("limit", policy, Arc::new(remote.clone())), remote)
}

fn rule(limiter: &Limiter) -> Rule {
    Rule::new(limiter.clone(), Constant::new("k"), REJECT)
}

async fn used(limiter: &Limiter) -> u64 {
    limiter.status("k").await.unwrap().used()
}

#[tokio::test]
async fn only_failed_logins_count() {
    let (limiter, _) = limiter(policy!("3/1m"));
    let login = rule(&limiter).settle(|response| match response.status() {
        StatusCode::OK => ActualCost::Nothing,
        _ => ActualCost::AsCharged,
    });
    let handler = |Query(login): Query<std::collections::HashMap<String, String>>| async move {
        if login["password"] == "right" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    };
    let server = Server::start(Router::new().route("/", get(handler)).layer(LimitLayer::new([login], CLOSED))).await;
    for _ in 0..10 {
        let reply = server.get("/?password=right").await;
        assert_eq!((reply.status, reply.field("ratelimit").as_deref()), (200, Some("\"limit\";r=3")));
    }
    for left in (0..3).rev() {
        let reply = server.get("/?password=wrong").await;
        assert_eq!((reply.status, reply.field("ratelimit")), (401, Some(format!("\"limit\";r={left};t=60"))));
    }
    assert_eq!(server.get("/?password=right").await.status, 429);
}

/// How many tokens a handler used.
#[derive(Clone)]
struct Tokens(u64);

#[tokio::test]
async fn tokens_and_bytes_are_charged_from_the_response() {
    let (limiter, _) = limiter(policy!("1000/1m"));
    let tokens = rule(&limiter).charge(|_| Charge::units(400)).settle(|response| {
        response.extensions().get().map_or(ActualCost::AsCharged, |Tokens(used)| ActualCost::Units(*used))
    });
    let chat = || async { (Extension(Tokens(30)), "three short words") };
    let bytes = |response: &limiter_tower::ResponseHead<'_>| ActualCost::Units(response.content_length().unwrap_or(0));
    let (traffic, _) = self::limiter(policy!("1000/1m"));
    let rules = [tokens, rule(&traffic).settle(bytes)];
    let server = Server::start(Router::new().route("/", get(chat)).layer(LimitLayer::new(rules, CLOSED))).await;
    let reply = server.get("/").await;
    assert_eq!(reply.field("ratelimit").unwrap(), "\"limit\";r=970;t=60, \"limit\";r=983;t=60");
    assert_eq!((used(&limiter).await, used(&traffic).await), (30, 17));
}

#[tokio::test]
async fn a_handler_settles_when_it_knows() {
    let (limiter, _) = limiter(policy!("1000/1m"));
    let rule = rule(&limiter).charge(|_| Charge::units(400)).settle_in_handler();
    let handler = |Extension(charges): Extension<Charges>| async move {
        assert_eq!(charges.iter().count(), 1);
        let parts = futures::stream::unfold((0, charges), async |(sent, charges)| {
            if sent == 3 {
                for charge in charges.iter() {
                    assert!(charge.settle(sent).await.unwrap().applied());
                }
                return None;
            }
            Some((Ok::<_, std::io::Error>("word "), (sent + 1, charges)))
        });
        Body::from_stream(parts).into_response()
    };
    let server = Server::start(Router::new().route("/", get(handler)).layer(LimitLayer::new([rule], CLOSED))).await;
    let reply = server.get("/").await;
    assert_eq!(
        (reply.body.as_str(), reply.field("ratelimit").as_deref()),
        ("word word word ", Some("\"limit\";r=600;t=60"))
    );
    assert_eq!(used(&limiter).await, 3);
}

#[tokio::test]
async fn a_store_that_fails_while_settling_keeps_the_charge() {
    for mood in [Mood::Failing, Mood::Hanging] {
        let (limiter, remote) = limiter(policy!("3/1m"));
        let store = remote.clone();
        let handler = move || async move { store.set(mood) };
        let refunded = rule(&limiter).settle(|_| ActualCost::Nothing);
        let layer = LimitLayer::builder([refunded], CLOSED).timeout(Duration::from_millis(50)).build();
        let server = Server::start(Router::new().route("/", get(handler)).layer(layer)).await;
        let reply = server.get("/").await;
        assert_eq!((reply.status, reply.field("ratelimit").as_deref()), (200, Some("\"limit\";r=2;t=60")));
        remote.set(Mood::Well);
        assert_eq!(used(&limiter).await, 1);
    }
}

/// Sends a request whose handler hangs, and goes away.
async fn abandon(rule: Rule) {
    let handler = || async { std::future::pending::<()>().await };
    let router = Router::new().route("/", get(handler)).layer(LimitLayer::new([rule], CLOSED));
    let gone = tokio::time::timeout(Duration::from_millis(50), router.oneshot(request_from("192.0.2.1:80"))).await;
    assert!(gone.is_err());
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn a_client_that_goes_away_stays_charged_unless_the_rule_refunds() {
    let (limiter, _) = limiter(policy!("5/1m"));
    abandon(rule(&limiter)).await;
    assert_eq!(used(&limiter).await, 1);
    abandon(rule(&limiter).settle(|_| ActualCost::Nothing)).await;
    assert_eq!(used(&limiter).await, 2, "there was no response to settle from");
    abandon(rule(&limiter).refund_abandoned()).await;
    assert_eq!(used(&limiter).await, 2);
}

#[tokio::test]
async fn a_connection_that_closes_is_a_client_that_goes_away() {
    use tokio::io::AsyncWriteExt;
    let (limiter, _) = limiter(policy!("5/1m"));
    let handler = || async { std::future::pending::<()>().await };
    for (rule, expected) in [(rule(&limiter), 1), (rule(&limiter).refund_abandoned(), 1)] {
        let server = Server::start(Router::new().route("/", get(handler)).layer(LimitLayer::new([rule], CLOSED))).await;
        let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(socket);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(used(&limiter).await, expected);
    }
}

#[tokio::test]
async fn a_refund_follows_a_finished_request_only_by_its_hook() {
    let (limiter, _) = limiter(policy!("5/1m"));
    let layer = LimitLayer::new([rule(&limiter).refund_abandoned()], CLOSED);
    let router = Router::new().route("/", get(|| async {})).layer(layer);
    assert_eq!(router.oneshot(request_from("192.0.2.1:80")).await.unwrap().status(), 200);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(used(&limiter).await, 1);
}
