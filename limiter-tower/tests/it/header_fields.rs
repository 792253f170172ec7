//! Every header field at its boundary, with a mock clock.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get as on_get;
use limiter_core::request::Undecided;
use limiter_core::{AllOf, Error, ErrorKind, Limiter, Policy, Window, policy};
use limiter_testkit::MockClock;
use limiter_tower::key::Constant;
use limiter_tower::{
    Charge, GrpcStatus, HeaderFormat, LimitLayer, RateLimitHeaders, Rejection, ResetFormat,
    Respond, Rule,
};
use sfv::FieldType;

use crate::common::{
    CLOSED, Does, REJECT, Reply, get, get_with, hello, remote, rule, store, violated,
};

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
    assert_eq!((reply.status, reply.retry_after()), (status, retry_after));
    for (name, value) in [("ratelimit-policy", policy), ("ratelimit", limits)] {
        assert_eq!(reply.field(name).as_deref(), Some(value));
        let list: sfv::List = sfv::Parser::new(value).parse().unwrap();
        assert_eq!(list.serialize().as_deref(), Some(value));
    }
}

/// Limiters, each with its name, its limits and `RateLimit-Policy`. Their requests follow: how much later each comes, its status,
/// `RateLimit`, and if it is denied `Retry-After` and the limits that deny.
const REQUESTS: &str = r#"
search | 2/9s+1s | "search";q=2;w=9
    0us       | 200 | "search";r=1;t=10
    1us       | 200 | "search";r=0;t=10
    1s        | 429 | "search";r=0;t=9 | 9 | search
search | 1/10s | "search";q=1;w=10
    0us       | 200 | "search";r=0;t=10
    0us       | 429 | "search";r=0;t=10 | 10 | search
    1us       | 429 | "search";r=0;t=10 | 10 | search
    8999998us | 429 | "search";r=0;t=2 | 2 | search
    1us       | 429 | "search";r=0;t=1 | 1 | search
    999999us  | 429 | "search";r=0;t=1 | 1 | search
    1us       | 200 | "search";r=0;t=10
search | 2/1s, 3/1m, 9/2500ms | "search-1s";q=2;w=1, "search-1m";q=3;w=60, "search-2500ms";q=9;w=3
    0us       | 200 | "search-1s";r=1;t=1, "search-1m";r=2;t=60, "search-2500ms";r=8;t=3
    0us       | 200 | "search-1s";r=0;t=1, "search-1m";r=1;t=60, "search-2500ms";r=7;t=3
    1s        | 200 | "search-1s";r=1;t=1, "search-1m";r=0;t=59, "search-2500ms";r=6;t=2
    0us       | 429 | "search-1s";r=1;t=1, "search-1m";r=0;t=59, "search-2500ms";r=6;t=2 | 59 | search-1m
search | 2/10s~1s, 9/1m~1s, 8/1m | "search-10s";q=2;w=10, "search-9/1m~1s";q=9;w=60, "search-8/1m";q=8;w=60
    0us       | 200 | "search-10s";r=1;t=10, "search-9/1m~1s";r=8;t=60, "search-8/1m";r=7;t=60
    500ms     | 200 | "search-10s";r=0;t=10, "search-9/1m~1s";r=7;t=60, "search-8/1m";r=6;t=60
    8700ms    | 429 | "search-10s";r=0;t=1, "search-9/1m~1s";r=7;t=51, "search-8/1m";r=6;t=51 | 1 | search-10s
a "b\c" ü | 4503599627370496/1us | "a \"b\\c\" %C3%BC";q=999999999999999;w=1
    0us       | 200 | "a \"b\\c\" %C3%BC";r=999999999999999;t=1
a "b\c" ü | 1/1s | "a \"b\\c\" %C3%BC";q=1;w=1
    0us       | 200 | "a \"b\\c\" %C3%BC";r=0;t=1
    0us       | 429 | "a \"b\\c\" %C3%BC";r=0;t=1 | 1 | a "b\c" %C3%BC
"#;

#[tokio::test]
async fn each_limit_has_its_items_and_waits_are_rounded_up() {
    let mut limiter = None;
    for row in REQUESTS.lines().skip(1) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if !row.starts_with(' ') {
            let limits: Policy = cells[1].parse().unwrap();
            limiter = Some((limited(cells[0], limits), cells[2]));
            continue;
        }
        println!("{row}");
        let ((app, clock), policy) = limiter.as_ref().unwrap();
        let later = cells[0].parse::<Window>();
        clock.advance(Duration::from_micros(later.map_or(0, Window::as_micros)));
        let reply = get(app).await;
        let retry_after = cells.get(3).map(|seconds| seconds.parse().unwrap());
        check(
            &reply,
            cells[1].parse().unwrap(),
            policy,
            cells[2],
            retry_after,
        );
        if let Some(denying) = cells.get(4) {
            assert_eq!(violated(&reply), [*denying]);
        }
    }
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
            r#""free";q=5;w=10"#,
            r#""free";r=5"#,
            None,
        );
    }
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
    let policy = r#""search-gold-10s";q=50;w=10, "search-gold-1m";q=70;w=60"#;
    let limits = r#""search-gold-10s";r=47;t=10, "search-gold-1m";r=67;t=60"#;
    let reply = get_with(&app, "/", &[("x-gold", "yes")]).await;
    check(&reply, 200, policy, limits, None);
    let policy = r#""search";q=2;w=10"#;
    let limits = r#""search";r=0;t=10"#;
    check(&get(&app).await, 429, policy, limits, Some(10));
}

#[tokio::test]
async fn several_rules_have_one_list_and_the_limiter_comes_first_in_shared_names() {
    let each = ["chat", "search"].map(|name| rule(name, policy!("1/10s").with_name("free")).0);
    let all = Limiter::new("all", policy!("50/1m"), store().0);
    let all = Rule::new(all, Constant::new("all"), REJECT);
    let exempt = rule("never", policy!("1/1s")).0.exempt(|_| true);
    let app = hello(LimitLayer::new(
        each.into_iter().chain([all, exempt]),
        CLOSED,
    ));
    let policy = r#""chat-free";q=1;w=10, "search-free";q=1;w=10, "all";q=50;w=60"#;
    let limits = r#""chat-free";r=0;t=10, "search-free";r=0;t=10, "all";r=49;t=60"#;
    check(&get(&app).await, 200, policy, limits, None);
    assert_eq!(violated(&get(&app).await), ["chat-free", "search-free"]);
}

/// `await` alone would return the first error; here they stay with their calls.
async fn both(
    State((one, two, cost)): State<(Limiter, Limiter, u64)>,
) -> Result<Response, Rejection> {
    let all = AllOf::new()
        .with(one.acquire("k").cost(cost))
        .with(two.acquire("k").cost(cost));
    let all = Undecided::from(all).decide().await;
    if all.is_denied() {
        return Err(Rejection::of(&all));
    }
    let mut response = "hello".into_response();
    RateLimitHeaders::default().write(response.headers_mut(), &all);
    Ok(response)
}

async fn compare(layer: &Router, handler: &Router, statuses: &[u16]) {
    for status in statuses {
        let expected = get(layer).await;
        let found = get(handler).await;
        assert_eq!((expected.status, found.status), (*status, *status));
        assert_eq!(
            (found.headers, found.body),
            (expected.headers, expected.body)
        );
    }
}

#[tokio::test]
async fn a_handler_answers_like_the_layer() {
    for (cost, does, status) in [
        (4, Does::Answer, 429),
        (6, Does::Answer, 413),
        (4, Does::Refuse, 503),
    ] {
        let [layer, [one, two]] = [(); 2].map(|()| {
            let (store_of_second, second) = remote("second", policy!("9/1m"));
            store_of_second.set(does);
            [
                Limiter::new("first", policy!("5/1m, 7/1h").with_name("free"), store().0),
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
        let statuses = if status == 429 {
            [200, 429]
        } else {
            [status; 2]
        };
        compare(&layer, &handler, &statuses).await;
    }
    // With gRPC's RESOURCE_EXHAUSTED, UNAVAILABLE and INTERNAL.
    for (kind, expected) in [
        (ErrorKind::CostExceedsLimit, (413, None, "8")),
        (ErrorKind::Timeout, (503, Some(1), "14")),
        (ErrorKind::Configuration, (503, None, "13")),
    ] {
        let rejection = Rejection::from(Error::new(kind, ""));
        let grpc: Response = GrpcStatus.respond(&rejection);
        let code = grpc.headers()["grpc-status"].to_str().unwrap();
        let found = (
            rejection.status().as_u16(),
            rejection.retry_after_secs(),
            code,
        );
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn older_forms_are_a_choice_and_say_what_reset_means() {
    let (one, clock) = rule("search", policy!("5/10s, 2/1m"));
    let none = RateLimitHeaders::none;
    let separate = none().format(HeaderFormat::Separate);
    let app = with_fields(one, separate.x_rate_limit(ResetFormat::UnixTime));
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

    let both = RateLimitHeaders::default().x_rate_limit(ResetFormat::SecondsFromNow);
    let reply = get(&with_fields(rule("search", policy!("5/10s")).0, both)).await;
    assert_eq!(read(&reply, "x-"), ["5", "4", "10"]);
    check(
        &reply,
        200,
        r#""search";q=5;w=10"#,
        r#""search";r=4;t=10"#,
        None,
    );

    let app = with_fields(rule("search", policy!("1/10s")).0, none());
    let fields = get(&app).await.headers;
    assert!(
        fields.keys().all(|name| !name.as_str().contains("limit")),
        "{fields:?}"
    );
    assert_eq!(get(&app).await.retry_after(), Some(10));
}

#[tokio::test]
async fn redirects_and_large_remainders_are_options() {
    let fields = RateLimitHeaders::default().max_remaining(100);
    for (fields, sent) in [(fields, false), (fields.on_redirects(), true)] {
        let rule = rule("search", policy!("100000/1d")).0;
        let layer = LimitLayer::builder([rule], CLOSED).headers(fields).build();
        let elsewhere = on_get(|| async { Redirect::to("/other") });
        let reply = get(&Router::new().route("/", elsewhere).layer(layer)).await;
        if sent {
            let policy = r#""search";q=100000;w=86400"#;
            let limits = r#""search";r=100;t=86400"#;
            check(&reply, 303, policy, limits, None);
        }
        let fields = ["ratelimit", "ratelimit-policy"].map(|name| reply.field(name).is_some());
        assert_eq!((reply.status, fields), (303, [sent; 2]));
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
    let policy = r#""search";q=1;w=10"#;
    let limits = r#""own";r=1, "search";r=0;t=10"#;
    check(&reply, 503, policy, limits, Some(77));
    assert_eq!(reply.field("x-ratelimit-limit").unwrap(), "7");
    assert_eq!(reply.field("x-ratelimit-remaining").unwrap(), "0");
    let denied = get(&app).await;
    assert_eq!((denied.status, denied.retry_after()), (429, Some(10)));
}
