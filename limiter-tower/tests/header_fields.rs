//! Every header field at its boundary, over real sockets, with a mock clock.

mod common;

use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use common::{CLOSED, REJECT, Reply, Server, rule, store};
use limiter_core::{Counting, Limit, Limiter, MAX_COST, policy};
use limiter_testkit::MockClock;
use limiter_tower::key::{Constant, PeerAddress};
use limiter_tower::{Charge, FieldForm, Fields, LimitLayer, Reset, Rule};
use sfv::FieldType;

async fn hello(layer: LimitLayer) -> Server {
    Server::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await
}

async fn limited(name: &str, limits: impl limiter_core::IntoPolicy) -> (Server, MockClock) {
    let (rule, clock) = rule(name, limits);
    (hello(LimitLayer::new([rule], CLOSED)).await, clock)
}

fn fields(reply: &Reply) -> (u16, Option<String>, Option<String>, Option<u64>) {
    (reply.status, reply.field("ratelimit-policy"), reply.field("ratelimit"), reply.retry_after())
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Parses a field and writes it again.
fn round_trip(reply: &Reply, name: &str) {
    let value = reply.field(name).unwrap();
    let list: sfv::List = sfv::Parser::new(&value).parse().unwrap();
    assert_eq!(list.serialize(), Some(value));
}

#[tokio::test]
async fn fields_are_sent_on_allowed_and_denied_responses() {
    let (server, clock) = limited("search", policy!("2/10s")).await;
    let policy = some("\"search\";q=2;w=10");
    assert_eq!(fields(&server.get("/").await), (200, policy.clone(), some("\"search\";r=1;t=10"), None));
    clock.advance(Duration::from_micros(1));
    assert_eq!(fields(&server.get("/").await), (200, policy.clone(), some("\"search\";r=0;t=10"), None));
    clock.advance(Duration::from_secs(1));
    let denied = server.get("/").await;
    assert_eq!(fields(&denied), (429, policy, some("\"search\";r=0;t=9"), Some(9)));
    assert_eq!(denied.field("content-type"), some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["search"]));
    assert!(problem["title"].as_str().unwrap().contains("quota"));
    round_trip(&denied, "ratelimit");
    round_trip(&denied, "ratelimit-policy");
}

#[tokio::test]
async fn a_wait_is_rounded_up_and_waiting_that_long_succeeds() {
    for (elapsed, seconds) in [(9_800_000, 1), (9_999_999, 1), (9_000_000, 1), (8_999_999, 2), (1, 10), (0, 10)] {
        let (server, clock) = limited("search", policy!("1/10s")).await;
        assert_eq!(server.get("/").await.status, 200);
        clock.advance(Duration::from_micros(elapsed));
        let denied = server.get("/").await;
        assert_eq!((denied.status, denied.retry_after()), (429, Some(seconds)), "after {elapsed} us");
        assert_eq!(denied.field("ratelimit"), Some(format!("\"search\";r=0;t={seconds}")));
        clock.advance(Duration::from_secs(seconds));
        assert_eq!(server.get("/").await.status, 200, "after {elapsed} us and {seconds} s");
    }
}

#[tokio::test]
async fn one_microsecond_less_than_the_wait_is_denied() {
    let (server, clock) = limited("search", policy!("1/10s")).await;
    server.get("/").await;
    clock.advance(Duration::from_micros(9_999_999));
    assert_eq!(server.get("/").await.status, 429);
    clock.advance(Duration::from_micros(1));
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn a_denied_request_that_counts_gets_the_wait_that_then_holds() {
    let (server, clock) = limited("login", policy!("2/10s").with_counting(Counting::Attempts)).await;
    for second in 0..4 {
        let reply = server.get("/").await;
        assert_eq!(reply.status, if second < 2 { 200 } else { 429 });
        clock.advance(Duration::from_secs(1));
    }
    let denied = server.get("/").await;
    clock.advance(Duration::from_secs(denied.retry_after().unwrap()));
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn each_limit_has_its_item_and_denying_ones_are_named() {
    let (server, clock) = limited("search", policy!("2/1s, 3/1m, 9/2500ms")).await;
    let policy = some("\"search-1s\";q=2;w=1, \"search-1m\";q=3;w=60, \"search-2500ms\";q=9;w=3");
    let first = server.get("/").await;
    let items = some("\"search-1s\";r=1;t=1, \"search-1m\";r=2;t=60, \"search-2500ms\";r=8;t=3");
    assert_eq!(fields(&first), (200, policy.clone(), items, None));
    round_trip(&first, "ratelimit");
    round_trip(&first, "ratelimit-policy");
    server.get("/").await;
    clock.advance(Duration::from_secs(1));
    let third = server.get("/").await;
    let items = some("\"search-1s\";r=1;t=1, \"search-1m\";r=0;t=59, \"search-2500ms\";r=6;t=2");
    assert_eq!(fields(&third), (200, policy.clone(), items, None));
    let denied = server.get("/").await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(59)));
    let problem: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["search-1m"]));
}

#[tokio::test]
async fn unused_limits_have_no_t() {
    let (store, _) = store();
    let free = Rule::new(Limiter::new("free", policy!("5/10s"), store), PeerAddress::new(), REJECT);
    let server = hello(LimitLayer::new([free.charge(|_| Charge::units(0))], CLOSED)).await;
    for _ in 0..9 {
        assert_eq!(server.get("/").await.field("ratelimit"), some("\"free\";r=5"));
    }
}

#[tokio::test]
async fn numbers_and_names_stay_within_structured_fields() {
    let (server, _) = limited("a \"b\\c\" ü", Limit::new(MAX_COST, Duration::from_micros(1)).unwrap()).await;
    let reply = server.get("/").await;
    assert_eq!(reply.field("ratelimit-policy"), some(r#""a \"b\\c\" %C3%BC";q=999999999999999;w=1"#));
    assert_eq!(reply.field("ratelimit"), some(r#""a \"b\\c\" %C3%BC";r=999999999999999;t=1"#));
    round_trip(&reply, "ratelimit");
    round_trip(&reply, "ratelimit-policy");
}

#[tokio::test]
async fn a_policy_by_request_has_its_own_name_and_quota() {
    let (rule, _) = rule("search", policy!("2/10s"));
    let gold = std::sync::Arc::new(policy!("50/10s, 70/1m").with_name("gold"));
    let rule = rule.charge(move |head| match head.header("x-gold") {
        Some(_) => Charge::units(3).under(gold.clone()),
        None => Charge::units(1),
    });
    let server = hello(LimitLayer::new([rule], CLOSED)).await;
    let reply = server.get_with("/", &[("x-gold", "yes")]).await;
    let policy = some("\"gold-10s\";q=50;w=10, \"gold-1m\";q=70;w=60");
    assert_eq!(fields(&reply), (200, policy, some("\"gold-10s\";r=47;t=10, \"gold-1m\";r=67;t=60"), None));
    let reply = server.get("/").await;
    let policy = some("\"search\";q=2;w=10");
    assert_eq!(fields(&reply), (429, policy, some("\"search\";r=0;t=10"), Some(10)));
}

#[tokio::test]
async fn older_forms_are_a_choice_and_say_what_reset_means() {
    let (one, clock) = rule("search", policy!("5/10s, 2/1m"));
    let forms = Fields::none().form(FieldForm::Separate).x_rate_limit(Reset::UnixTime);
    let server = hello(LimitLayer::builder([one], CLOSED).fields(forms).build()).await;
    let read = |reply: &Reply, prefix: &str| {
        ["limit", "remaining", "reset"].map(|name| reply.field(&format!("{prefix}ratelimit-{name}")).unwrap())
    };
    let reply = server.get("/").await;
    assert_eq!(read(&reply, ""), ["2", "1", "60"]);
    assert_eq!(read(&reply, "x-"), ["2", "1", "1700000060"]);
    assert_eq!((reply.field("ratelimit"), reply.field("ratelimit-policy")), (None, None));
    clock.advance(Duration::from_micros(1_500_001));
    server.get("/").await;
    let denied = server.get("/").await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(59)));
    assert_eq!(read(&denied, ""), ["2", "0", "60"]);
    assert_eq!(read(&denied, "x-"), ["2", "0", "1700000062"]);

    let (one, _) = rule("search", policy!("5/10s"));
    let forms = Fields::default().x_rate_limit(Reset::SecondsFromNow);
    let server = hello(LimitLayer::builder([one], CLOSED).fields(forms).build()).await;
    let reply = server.get("/").await;
    assert_eq!(read(&reply, "x-"), ["5", "4", "10"]);
    assert_eq!(reply.field("ratelimit"), some("\"search\";r=4;t=10"));

    let (one, _) = rule("search", policy!("1/10s"));
    let server = hello(LimitLayer::builder([one], CLOSED).fields(Fields::none()).build()).await;
    assert_eq!(server.get("/").await.headers.keys().filter(|name| name.as_str().contains("limit")).count(), 0);
    assert_eq!(server.get("/").await.retry_after(), Some(10));
}

#[tokio::test]
async fn redirects_and_large_remainders_are_options() {
    for on_redirects in [false, true] {
        let (one, _) = rule("search", policy!("100000/1d"));
        let fields = Fields::default().max_remaining(100);
        let fields = if on_redirects { fields.on_redirects() } else { fields };
        let router = Router::new().route("/", get(|| async { Redirect::to("/other") }));
        let server = Server::start(router.layer(LimitLayer::builder([one], CLOSED).fields(fields).build())).await;
        let reply = server.get("/").await;
        assert_eq!(reply.status, 303);
        assert_eq!(reply.field("ratelimit"), on_redirects.then(|| "\"search\";r=100;t=86400".to_owned()));
        assert_eq!(reply.field("ratelimit-policy"), on_redirects.then(|| "\"search\";q=100000;w=86400".to_owned()));
    }
}

#[tokio::test]
async fn fields_of_the_handler_are_kept_or_joined() {
    let own = || async {
        let fields = [("retry-after", "77"), ("x-ratelimit-limit", "7"), ("ratelimit", "\"own\";r=1")];
        (http::StatusCode::SERVICE_UNAVAILABLE, fields, "busy").into_response()
    };
    let (one, _) = rule("search", policy!("1/10s"));
    let fields = Fields::default().x_rate_limit(Reset::SecondsFromNow);
    let router = Router::new().route("/", get(own));
    let server = Server::start(router.layer(LimitLayer::builder([one], CLOSED).fields(fields).build())).await;
    let reply = server.get("/").await;
    assert_eq!((reply.status, reply.retry_after()), (503, Some(77)));
    assert_eq!(reply.field("x-ratelimit-limit"), some("7"));
    assert_eq!(reply.field("x-ratelimit-remaining"), some("0"));
    assert_eq!(reply.field("ratelimit"), some("\"own\";r=1, \"search\";r=0;t=10"));
    round_trip(&reply, "ratelimit");
    let denied = server.get("/").await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(10)));
}

#[tokio::test]
async fn several_rules_have_one_list() {
    let (store, _) = store();
    let each = Rule::new(Limiter::new("each", policy!("5/10s"), store.clone()), PeerAddress::new(), REJECT);
    let all = Rule::new(Limiter::new("all", policy!("50/1m"), store), Constant::new("all"), REJECT);
    let exempt = rule("never", policy!("1/1s")).0.exempt(|_| true);
    let server = hello(LimitLayer::new([each, all, exempt], CLOSED)).await;
    let reply = server.get("/").await;
    assert_eq!(reply.field("ratelimit-policy"), some("\"each\";q=5;w=10, \"all\";q=50;w=60"));
    assert_eq!(reply.field("ratelimit"), some("\"each\";r=4;t=10, \"all\";r=49;t=60"));
}
