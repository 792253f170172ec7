//! Which requests are charged, with several rules.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::routing::get as on_get;
use http::{HeaderName, HeaderValue, StatusCode};
use limiter_core::{Clock, Limiter, SharedStore, policy};
use limiter_testkit::MockClock;
use limiter_tower::key::{ClientAddress, Header, KeyExtractor};
use limiter_tower::{Charge, LimitLayer, MissingKey, Rejection, RequestHead, Rule, RuleOutcome};

use crate::common::{
    CLOSED, Does, REJECT, Remote, get, get_with, hello, remote, rule, shared, store, violated,
};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The stores that rules are tested on: one answers immediately, one needs a future.
fn stores() -> [(SharedStore, MockClock); 2] {
    let (at_once, first) = store();
    let (remote, second) = store();
    [(at_once, first), (Arc::new(Remote::new(remote)), second)]
}

fn by_peer(limiter: &Limiter) -> Rule {
    Rule::new(limiter.clone(), ClientAddress::peer(), REJECT)
}

/// What counts for the peer 127.0.0.1.
async fn used<const N: usize>(limiters: &[Limiter; N]) -> [u64; N] {
    let mut used = [0; N];
    for (used, limiter) in used.iter_mut().zip(limiters) {
        *used = limiter.status("127.0.0.1").await.unwrap().used();
    }
    used
}

#[tokio::test]
async fn a_rule_that_denies_charges_no_other() {
    for (store, clock) in stores() {
        let limits = [
            ("a", policy!("5/1m")),
            ("b", policy!("2/1m")),
            ("c", policy!("1/1s")),
        ];
        let limiters = limits.map(|(name, policy)| Limiter::new(name, policy, store.clone()));
        let app = hello(LimitLayer::new(limiters.each_ref().map(by_peer), CLOSED));
        assert_eq!(get(&app).await.status, 200);
        // The third denies; then all but the first, and the wait is the longest.
        let denied = get(&app).await;
        assert_eq!((denied.status, denied.retry_after()), (429, Some(1)));
        assert_eq!(
            denied.limits(),
            r#""a";r=4;t=60, "b";r=1;t=60, "c";r=0;t=1"#
        );
        assert_eq!(used(&limiters).await, [1, 1, 1]);
        clock.advance(Duration::from_secs(1));
        assert_eq!(get(&app).await.status, 200);
        for _ in 0..20 {
            let denied = get(&app).await;
            assert_eq!((denied.status, denied.retry_after()), (429, Some(59)));
            assert_eq!(violated(&denied), ["b", "c"]);
            assert_eq!(used(&limiters).await, [2, 2, 1]);
        }
        clock.advance(Duration::from_secs(59));
        assert_eq!(get(&app).await.status, 200);
    }
}

#[tokio::test]
async fn a_kept_charge_stays_when_another_rule_denies() {
    for (store, _) in stores() {
        let limiters = [("account", policy!("1/1m")), ("address", policy!("3/1m"))]
            .map(|(name, policy)| Limiter::new(name, policy, store.clone()));
        let rules = [by_peer(&limiters[0]), by_peer(&limiters[1]).keep_charge()];
        let app = hello(LimitLayer::new(rules, CLOSED));
        for (status, left, charges) in [
            (200, [0, 2], [1, 1]),
            (429, [0, 1], [1, 2]),
            (429, [0, 0], [1, 3]),
            (429, [0, 0], [1, 3]),
        ] {
            let reply = get(&app).await;
            let limits = format!(
                r#""account";r={};t=60, "address";r={};t=60"#,
                left[0], left[1]
            );
            assert_eq!((reply.status, reply.limits()), (status, limits));
            assert_eq!(used(&limiters).await, charges);
        }
    }
}

#[tokio::test]
async fn a_layer_waits_for_all_rules_within_its_time() {
    // Status and time in seconds. The third request waits 9 s for its second rule.
    let long = 9_000_000;
    let short = 8_999_999;
    for (within, expected) in [
        (long, [(200, 0), (200, 1), (200, 10), (200, 11), (200, 20)]),
        (short, [(200, 0), (200, 1), (429, 1), (429, 1), (429, 1)]),
    ] {
        for (store, clock) in stores() {
            let begin = Clock::now(&clock);
            let limiters = [("fast", policy!("1/1s")), ("slow", policy!("2/10s"))]
                .map(|(name, policy)| Limiter::new(name, policy, store.clone()));
            let layer = LimitLayer::builder(limiters.each_ref().map(by_peer), CLOSED)
                .within(Duration::from_micros(within));
            let _ = clock.clone().auto_advancing();
            let app = hello(layer.build());
            for (status, seconds) in expected {
                let reply = get(&app).await;
                let waited = Clock::now(&clock).micros_since(begin);
                assert_eq!((reply.status, waited), (status, seconds * 1_000_000));
                assert_eq!(reply.retry_after(), (status == 429).then_some(9));
            }
            assert_eq!(used(&limiters).await, [1, 2], "denied tries are refunded");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_a_choice() {
    let reject = MissingKey::Reject(StatusCode::UNAUTHORIZED);
    for (shares, missing, statuses) in [
        (false, reject, [401, 401, 200, 429, 401]),
        (false, MissingKey::Skip, [200, 200, 200, 429, 200]),
        (true, MissingKey::Skip, [200, 429, 200, 429, 429]),
    ] {
        let anonymous = move |_: &RequestHead<'_>| shares.then_some("anonymous");
        let (store, _) = store();
        let all = Limiter::new("all", policy!("9/1m"), store.clone());
        let api = Limiter::new("api", policy!("1/1m"), store);
        let api = Rule::new(api, Header::new(API_KEY).or(anonymous), missing);
        let app = hello(LimitLayer::new([by_peer(&all), api], CLOSED));
        let keys = [None, None, Some("k"), Some("k"), Some("")];
        for (key, status) in keys.into_iter().zip(statuses) {
            let headers: Vec<_> = key.map(|key| ("x-api-key", key)).into_iter().collect();
            let reply = get_with(&app, "/", &headers).await;
            assert_eq!(reply.status, status);
            assert_eq!(reply.retry_after().is_some(), status == 429);
            if status == 401 {
                let detail = reply.problem()["detail"].to_string();
                assert!(
                    detail.contains("the request has no rate limit key"),
                    "{detail}"
                );
            }
        }
        // A refused request is charged nowhere.
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(used(&[all]).await, [admitted as u64]);
    }
}

#[tokio::test]
async fn costs_and_policies_come_from_the_request() {
    for (store, _) in stores() {
        let limiter = Limiter::new("search", policy!("5/1m"), store);
        let gold = policy!("50/1m");
        let rule = by_peer(&limiter).charge(move |head| {
            let number = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
            let charge = Charge::units(head.header("x-cost").and_then(number).unwrap_or(1));
            match head.header("x-gold") {
                Some(_) => charge.policy(&gold),
                None => charge,
            }
        });
        let layer = LimitLayer::new([rule.exempt(|head| head.path() == "/health")], CLOSED);
        let app = Router::new()
            .route("/", on_get(|| async {}))
            .route("/health", on_get(|| async {}))
            .layer(layer);
        let cost = |units| ("x-cost", units);
        let gold = ("x-gold", "1");
        // No wait makes 6 fit 5.
        let reply = get_with(&app, "/", &[cost("6")]).await;
        assert_eq!((reply.status, reply.retry_after()), (413, None));
        assert_eq!(violated(&reply), ["search"]);
        for (headers, status, left) in [
            (&[cost("4")][..], 200, 1),
            (&[cost("2")], 429, 1),
            (&[cost("0")], 200, 1),
            (&[cost("20"), gold], 200, 26),
            (&[], 429, 0),
        ] {
            let reply = get_with(&app, "/", headers).await;
            let limits = format!(r#""search";r={left};t=60"#);
            assert_eq!(
                (reply.status, reply.limits()),
                (status, limits),
                "{headers:?}"
            );
        }
        let exempt = get_with(&app, "/health", &[]).await;
        assert_eq!((exempt.status, exempt.limits().as_str()), (200, ""));
        let roomy = policy!("99/1m");
        let all = limiter.status("127.0.0.1").policy(&roomy).await.unwrap();
        assert_eq!(all.used(), 24);
    }
}

#[tokio::test]
async fn a_cost_above_a_maximum_is_413_whatever_else_denies() {
    let (broken, failing) = remote("failing", policy!("9/1m"));
    let full = Limiter::new("full", policy!("6/1m"), store().0);
    assert!(full.acquire("k").cost(6).await.unwrap().is_allowed());
    let small = Limiter::new("small", policy!("5/1m"), store().0);
    for does in [Does::Answer, Does::Refuse] {
        broken.set(does);
        let rules = [&full, &failing, &small];
        let rules = rules.map(|limiter| shared(limiter).charge(|_| Charge::units(6)));
        let reply = get(&hello(LimitLayer::new(rules, CLOSED))).await;
        assert_eq!((reply.status, reply.retry_after()), (413, None), "{does:?}");
        assert!(violated(&reply).contains(&"small".to_owned()), "{does:?}");
    }
}

#[tokio::test]
async fn keys_combine_and_routes_are_kept_apart() {
    let method = |head: &RequestHead<'_>| Some(head.method().to_string());
    let route =
        |head: &RequestHead<'_>| Some(head.extensions().get::<MatchedPath>()?.as_str().to_owned());
    let key = (
        method,
        route,
        Header::new(API_KEY).or(ClientAddress::peer()),
    );
    let limiter = Limiter::new("route", policy!("1/1m"), store().0);
    let layer = LimitLayer::new([Rule::new(limiter.clone(), key, REJECT)], CLOSED);
    let routes = Router::new()
        .route("/a/{id}", on_get(|| async {}).post(|| async {}))
        .route("/b", on_get(|| async {}));
    let app = routes.layer(layer);
    let key = [("x-api-key", "k7")];
    for (path, headers, status) in [
        ("/a/1", &[][..], 200),
        ("/a/2", &[], 429),
        ("/b", &[], 200),
        ("/b", &key, 200),
        ("/b", &key, 429),
    ] {
        let reply = get_with(&app, path, headers).await;
        assert_eq!(reply.status, status, "{path} {headers:?}");
    }
    for key in ["GET,/a/{id},address\\,127.0.0.1", "GET,/b,x-api-key\\,k7"] {
        assert_eq!(limiter.status(key).await.unwrap().used(), 1);
    }
}

#[tokio::test]
async fn shadow_rules_deny_nothing_and_candidates_disturb_no_log() {
    for (store, _) in stores() {
        let limiters = [("candidate", policy!("2/1m")), ("search", policy!("4/1m"))]
            .map(|(name, policy)| Limiter::new(name, policy, store.clone()));
        let rules = [by_peer(&limiters[0]).shadow(), by_peer(&limiters[1])];
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&seen);
        let layer = LimitLayer::builder(rules, CLOSED).observe(move |seen| {
            assert_eq!(seen.shadow, seen.limiter.as_str() == "candidate");
            let wait = match seen.outcome {
                RuleOutcome::Denied(decision) => decision.retry_after_secs(),
                _ => None,
            };
            let outcome = seen.outcome.as_str();
            log.lock()
                .unwrap()
                .push(format!("{} {outcome} {wait:?}", seen.limiter));
        });
        let app = hello(layer.build());
        for i in 0..6 {
            let reply = get(&app).await;
            assert_eq!(reply.status, if i < 4 { 200 } else { 429 });
            assert!(!reply.limits().contains("candidate"));
        }
        assert_eq!(used(&limiters).await, [2, 4]);
        let mut seen = seen.lock().unwrap().clone();
        seen.sort();
        let expected = [
            ["candidate admitted None"; 2].as_slice(),
            &["candidate denied Some(60)"; 4],
            &["search admitted None"; 4],
            &["search denied Some(60)"; 2],
        ];
        assert_eq!(seen, expected.concat());
    }
}

#[tokio::test]
async fn bodies_and_statuses_are_replaceable() {
    let respond = |rejection: &Rejection| {
        let names = rejection.violated_policies();
        let wait = rejection.retry_after();
        let text = format!("slow down: {names:?}, {wait:?}");
        let response = http::Response::builder()
            .status(420)
            .header("retry-after", "99");
        response.body(Body::from(text)).unwrap()
    };
    let layer = LimitLayer::builder([rule("search", policy!("1/10s")).0], CLOSED)
        .respond_with(respond)
        .build();
    let app = hello(layer);
    get(&app).await;
    let denied = get(&app).await;
    assert_eq!((denied.status, denied.retry_after()), (420, Some(99)));
    assert_eq!(denied.body, "slow down: [\"search\"], Some(10s)");
    assert_eq!(denied.limits(), "\"search\";r=0;t=10");
}
