//! Every header field at its boundary, with a mock clock.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get as on_get;
use limiter_core::{AllOf, Error, ErrorKind, Limit, Limiter, MAX_COST, policy};
use limiter_testkit::MockClock;
use limiter_tower::key::{ClientAddress, Constant};
use limiter_tower::{
    Charge, HeaderFormat, LimitLayer, RateLimitHeaders, Rejection, ResetFormat, Rule,
};
use sfv::FieldType;

use crate::common::{CLOSED, Does, REJECT, Reply, get, get_with, hello, remote, rule, store};

fn limited(name: &str, limits: impl limiter_core::IntoPolicy) -> (Router, MockClock) {
    let (rule, clock) = rule(name, limits);
    (hello(LimitLayer::new([rule], CLOSED)), clock)
}

fn with_fields(rule: Rule, fields: RateLimitHeaders) -> Router {
    hello(LimitLayer::builder([rule], CLOSED).headers(fields).build())
}

/// Checks the fields of a reply, and that another parser reads them.
#[track_caller]
fn check(reply: &Reply, status: u16, policy: &str, limits: &str, retry_after: Option<u64>) {
    let found = (
        reply.status,
        reply.field("ratelimit-policy"),
        reply.field("ratelimit"),
        reply.retry_after(),
    );
    assert_eq!(
        found,
        (
            status,
            Some(policy.to_owned()),
            Some(limits.to_owned()),
            retry_after
        )
    );
    for value in [policy, limits] {
        let list: sfv::List = sfv::Parser::new(value).parse().unwrap();
        assert_eq!(list.serialize().as_deref(), Some(value));
    }
}

#[tokio::test]
async fn fields_are_sent_on_allowed_and_denied_responses() {
    let (app, clock) = limited("search", policy!("2/9s+1s"));
    // The window as stated, and waits by the counted window.
    let policy = "\"search\";q=2;w=9";
    check(&get(&app).await, 200, policy, "\"search\";r=1;t=10", None);
    clock.advance(Duration::from_micros(1));
    check(&get(&app).await, 200, policy, "\"search\";r=0;t=10", None);
    clock.advance(Duration::from_secs(1));
    let denied = get(&app).await;
    check(&denied, 429, policy, "\"search\";r=0;t=9", Some(9));
    let problem = denied.problem();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["violated-policies"], serde_json::json!(["search"]));
    assert!(problem["title"].as_str().unwrap().contains("quota"));
}

#[tokio::test]
async fn a_wait_is_rounded_up_and_exact() {
    for (elapsed, seconds) in [
        (9_800_000, 1),
        (9_999_999, 1),
        (9_000_000, 1),
        (8_999_999, 2),
        (1, 10),
        (0, 10),
    ] {
        let (app, clock) = limited("search", policy!("1/10s"));
        assert_eq!(get(&app).await.status, 200);
        clock.advance(Duration::from_micros(elapsed));
        check(
            &get(&app).await,
            429,
            "\"search\";q=1;w=10",
            &format!("\"search\";r=0;t={seconds}"),
            Some(seconds),
        );
        clock.advance(Duration::from_micros(9_999_999 - elapsed));
        assert_eq!(
            get(&app).await.status,
            429,
            "one microsecond too early after {elapsed} us"
        );
        clock.advance(Duration::from_micros(1));
        assert_eq!(get(&app).await.status, 200, "after {elapsed} us");
    }
}

#[tokio::test]
async fn each_limit_has_its_item_and_denying_ones_are_named() {
    let (app, clock) = limited("search", policy!("2/1s, 3/1m, 9/2500ms"));
    let policy = "\"search-1s\";q=2;w=1, \"search-1m\";q=3;w=60, \"search-2500ms\";q=9;w=3";
    let first = "\"search-1s\";r=1;t=1, \"search-1m\";r=2;t=60, \"search-2500ms\";r=8;t=3";
    check(&get(&app).await, 200, policy, first, None);
    get(&app).await;
    clock.advance(Duration::from_secs(1));
    let third = "\"search-1s\";r=1;t=1, \"search-1m\";r=0;t=59, \"search-2500ms\";r=6;t=2";
    check(&get(&app).await, 200, policy, third, None);
    let denied = get(&app).await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(59)));
    assert_eq!(
        denied.problem()["violated-policies"],
        serde_json::json!(["search-1m"])
    );
}

#[tokio::test]
async fn a_resolution_is_part_of_a_name_only_where_limits_share_a_window() {
    let (app, clock) = limited("search", policy!("2/10s~1s, 9/1m~1s, 8/1m"));
    let policy = "\"search-10s\";q=2;w=10, \"search-9/1m~1s\";q=9;w=60, \"search-8/1m\";q=8;w=60";
    get(&app).await;
    clock.advance(Duration::from_millis(500));
    get(&app).await;
    clock.advance(Duration::from_millis(8_700));
    let limits = "\"search-10s\";r=0;t=1, \"search-9/1m~1s\";r=7;t=51, \"search-8/1m\";r=6;t=51";
    check(&get(&app).await, 429, policy, limits, Some(1));
}

#[tokio::test]
async fn unused_limits_have_no_t() {
    let free = rule("free", policy!("5/10s"))
        .0
        .charge(|_| Charge::units(0));
    let app = hello(LimitLayer::new([free], CLOSED));
    for _ in 0..9 {
        check(
            &get(&app).await,
            200,
            "\"free\";q=5;w=10",
            "\"free\";r=5",
            None,
        );
    }
}

#[tokio::test]
async fn numbers_and_names_stay_within_structured_fields() {
    let (app, _) = limited(
        "a \"b\\c\" ü",
        Limit::new(MAX_COST, Duration::from_micros(1)).unwrap(),
    );
    let name = r#""a \"b\\c\" %C3%BC""#;
    let (policy, limits) = (
        format!("{name};q=999999999999999;w=1"),
        format!("{name};r=999999999999999;t=1"),
    );
    check(&get(&app).await, 200, &policy, &limits, None);
    let (app, _) = limited("a \"b\\c\" ü", policy!("1/1s"));
    get(&app).await;
    assert_eq!(
        get(&app).await.problem()["violated-policies"],
        serde_json::json!([r#"a "b\c" %C3%BC"#])
    );
}

#[tokio::test]
async fn a_policy_by_request_has_its_own_name_and_quota() {
    let gold = std::sync::Arc::new(policy!("50/10s, 70/1m").with_name("gold"));
    let rule = rule("search", policy!("2/10s"))
        .0
        .charge(move |head| match head.header("x-gold") {
            Some(_) => Charge::units(3).policy(&gold),
            None => Charge::units(1),
        });
    let app = hello(LimitLayer::new([rule], CLOSED));
    let policy = "\"search-gold-10s\";q=50;w=10, \"search-gold-1m\";q=70;w=60";
    let limits = "\"search-gold-10s\";r=47;t=10, \"search-gold-1m\";r=67;t=60";
    check(
        &get_with(&app, "/", &[("x-gold", "yes")]).await,
        200,
        policy,
        limits,
        None,
    );
    check(
        &get(&app).await,
        429,
        "\"search\";q=2;w=10",
        "\"search\";r=0;t=10",
        Some(10),
    );
}

#[tokio::test]
async fn the_limiter_comes_first_where_policies_have_the_same_name() {
    let (store, _) = store();
    let rules = ["chat", "search"].map(|name| {
        let limiter = Limiter::new(name, policy!("1/10s").with_name("free"), store.clone());
        Rule::new(limiter, ClientAddress::peer(), REJECT)
    });
    let app = hello(LimitLayer::new(rules, CLOSED));
    let policy = "\"chat-free\";q=1;w=10, \"search-free\";q=1;w=10";
    check(
        &get(&app).await,
        200,
        policy,
        "\"chat-free\";r=0;t=10, \"search-free\";r=0;t=10",
        None,
    );
    assert_eq!(
        get(&app).await.problem()["violated-policies"],
        serde_json::json!(["chat-free", "search-free"])
    );
}

async fn search(State(limiter): State<Limiter>) -> Result<Response, Rejection> {
    let decision = limiter.acquire("k").await?;
    let mut response = "hello".into_response();
    RateLimitHeaders::default().write(response.headers_mut(), &limiter, &decision);
    decision
        .into_result()
        .map(|_| response)
        .map_err(|denied| Rejection::denied(&limiter, &denied))
}

/// `await` alone would return the first error; here they stay with their calls.
async fn both(
    State((one, two, cost)): State<(Limiter, Limiter, u64)>,
) -> Result<&'static str, Rejection> {
    let all = AllOf::new()
        .with(one.acquire("k").cost(cost))
        .with(two.acquire("k").cost(cost));
    let all = all.decide().await;
    if all.is_denied() {
        Err(Rejection::of(&all))
    } else {
        Ok("hello")
    }
}

async fn compare(layer: &Router, handler: &Router, statuses: &[u16]) {
    for status in statuses {
        let (expected, found) = (get(layer).await, get(handler).await);
        assert_eq!((expected.status, found.status), (*status, *status));
        assert_eq!(
            (found.headers, found.body),
            (expected.headers, expected.body)
        );
    }
}

#[tokio::test]
async fn a_handler_answers_like_the_layer() {
    for policy in [policy!("1/10s"), policy!("1/10s, 3/1m").with_name("free")] {
        let (by_layer, by_handler) = (
            rule("search", policy.clone()).0,
            Limiter::new("search", policy, store().0),
        );
        let handler = Router::new()
            .route("/", on_get(search))
            .with_state(by_handler);
        compare(
            &hello(LimitLayer::new([by_layer], CLOSED)),
            &handler,
            &[200, 429, 429],
        )
        .await;
    }
    for (cost, does, status) in [
        (4, Does::Answer, 429),
        (6, Does::Answer, 413),
        (4, Does::Refuse, 503),
    ] {
        let [layer, [one, two]] = [(); 2].map(|()| {
            let (store_of_second, second) = remote("second", policy!("9/1m"));
            store_of_second.set(does);
            [
                Limiter::new("first", policy!("5/1m, 7/1h"), store().0),
                second,
            ]
        });
        let rules = layer.map(|limiter| {
            Rule::new(limiter, Constant::new("k"), REJECT).charge(move |_| Charge::units(cost))
        });
        let layer = hello(LimitLayer::new(rules, CLOSED));
        let handler = Router::new()
            .route("/", on_get(both))
            .with_state((one, two, cost));
        if status == 429 {
            assert_eq!(
                (get(&layer).await.status, get(&handler).await.status),
                (200, 200)
            );
        }
        compare(&layer, &handler, &[status; 2]).await;
    }
    let rejection = |kind| Rejection::from(Error::new(kind, ""));
    for (kind, status, wait) in [
        (ErrorKind::CostExceedsLimit, 413, None),
        (ErrorKind::Timeout, 503, Some(1)),
    ] {
        assert_eq!(
            (
                rejection(kind).status().as_u16(),
                rejection(kind).retry_after_secs()
            ),
            (status, wait)
        );
    }
}

#[tokio::test]
async fn older_forms_are_a_choice_and_say_what_reset_means() {
    let (one, clock) = rule("search", policy!("5/10s, 2/1m"));
    let app = with_fields(
        one,
        RateLimitHeaders::none()
            .format(HeaderFormat::Separate)
            .x_rate_limit(ResetFormat::UnixTime),
    );
    let read = |reply: &Reply, prefix: &str| {
        ["limit", "remaining", "reset"]
            .map(|name| reply.field(&format!("{prefix}ratelimit-{name}")).unwrap())
    };
    let reply = get(&app).await;
    assert_eq!(read(&reply, ""), ["2", "1", "60"]);
    assert_eq!(read(&reply, "x-"), ["2", "1", "1700000060"]);
    assert_eq!(
        (reply.field("ratelimit"), reply.field("ratelimit-policy")),
        (None, None)
    );
    clock.advance(Duration::from_micros(1_500_001));
    get(&app).await;
    let denied = get(&app).await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(59)));
    assert_eq!(read(&denied, ""), ["2", "0", "60"]);
    assert_eq!(read(&denied, "x-"), ["2", "0", "1700000062"]);

    let one = rule("search", policy!("5/10s")).0;
    let reply = get(&with_fields(
        one,
        RateLimitHeaders::default().x_rate_limit(ResetFormat::SecondsFromNow),
    ))
    .await;
    assert_eq!(read(&reply, "x-"), ["5", "4", "10"]);
    check(
        &reply,
        200,
        "\"search\";q=5;w=10",
        "\"search\";r=4;t=10",
        None,
    );

    let app = with_fields(rule("search", policy!("1/10s")).0, RateLimitHeaders::none());
    assert_eq!(
        get(&app)
            .await
            .headers
            .keys()
            .filter(|name| name.as_str().contains("limit"))
            .count(),
        0
    );
    assert_eq!(get(&app).await.retry_after(), Some(10));
}

#[tokio::test]
async fn redirects_and_large_remainders_are_options() {
    let fields = RateLimitHeaders::default().max_remaining(100);
    for (fields, sent) in [(fields, false), (fields.on_redirects(), true)] {
        let layer = LimitLayer::builder([rule("search", policy!("100000/1d")).0], CLOSED)
            .headers(fields)
            .build();
        let reply = get(&Router::new()
            .route("/", on_get(|| async { Redirect::to("/other") }))
            .layer(layer))
        .await;
        assert_eq!(reply.status, 303);
        assert_eq!(
            reply.field("ratelimit"),
            sent.then(|| "\"search\";r=100;t=86400".to_owned())
        );
        assert_eq!(
            reply.field("ratelimit-policy"),
            sent.then(|| "\"search\";q=100000;w=86400".to_owned())
        );
    }
}

#[tokio::test]
async fn fields_of_the_handler_are_kept_or_joined() {
    let own = || async {
        let fields = [
            ("retry-after", "77"),
            ("x-ratelimit-limit", "7"),
            ("ratelimit", "\"own\";r=1"),
        ];
        (http::StatusCode::SERVICE_UNAVAILABLE, fields, "busy").into_response()
    };
    let fields = RateLimitHeaders::default().x_rate_limit(ResetFormat::SecondsFromNow);
    let layer = LimitLayer::builder([rule("search", policy!("1/10s")).0], CLOSED)
        .headers(fields)
        .build();
    let app = Router::new().route("/", on_get(own)).layer(layer);
    let reply = get(&app).await;
    check(
        &reply,
        503,
        "\"search\";q=1;w=10",
        "\"own\";r=1, \"search\";r=0;t=10",
        Some(77),
    );
    assert_eq!(reply.field("x-ratelimit-limit").unwrap(), "7");
    assert_eq!(reply.field("x-ratelimit-remaining").unwrap(), "0");
    let denied = get(&app).await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(10)));
}

#[tokio::test]
async fn several_rules_have_one_list() {
    let (store, _) = store();
    let each = Rule::new(
        Limiter::new("each", policy!("5/10s"), store.clone()),
        ClientAddress::peer(),
        REJECT,
    );
    let all = Rule::new(
        Limiter::new("all", policy!("50/1m"), store),
        Constant::new("all"),
        REJECT,
    );
    let exempt = rule("never", policy!("1/1s")).0.exempt(|_| true);
    let app = hello(LimitLayer::new([each, all, exempt], CLOSED));
    let (policy, limits) = (
        "\"each\";q=5;w=10, \"all\";q=50;w=60",
        "\"each\";r=4;t=10, \"all\";r=49;t=60",
    );
    check(&get(&app).await, 200, policy, limits, None);
}
