//! Which requests are charged, with several rules, many concurrently.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::routing::get as on_get;
use futures::future::join_all;
use http::{HeaderName, Request, StatusCode};
use limiter_core::{Clock, Limiter, Policy, SharedStore, WithClock, policy};
use limiter_testkit::{MockClock, ReferenceStore};
use limiter_tower::key::{ClientAddress, Constant, Extension, Header, KeyExtractor};
use limiter_tower::{Charge, LimitLayer, MissingKey, Rejection, RequestHead, Rule, RuleOutcome};
use tower::{Layer, ServiceExt};

use crate::common::{CLOSED, Does, REJECT, Remote, Server, get, get_with, hello, rule, store};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The stores that rules are tested on: one answers immediately, one needs a future.
fn stores() -> [(SharedStore, MockClock); 2] {
    let (at_once, first) = store();
    let (remote, second) = store();
    [(at_once, first), (Arc::new(Remote::new(remote)), second)]
}

async fn used(limiters: &[&Limiter]) -> Vec<u64> {
    join_all(
        limiters
            .iter()
            .map(|limiter| async { limiter.status("127.0.0.1").await.unwrap().used() }),
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_concurrent_requests_exactly_the_maximum_runs() {
    for (store, _) in stores() {
        for http2 in [false, true] {
            let name = if http2 { "burst over HTTP/2" } else { "burst" };
            let rule = Rule::new(
                Limiter::new(name, policy!("17/1h"), store.clone()),
                ClientAddress::peer(),
                REJECT,
            );
            let handled = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&handled);
            let handler = move || async move {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            let router = Router::new()
                .route("/", on_get(handler))
                .layer(LimitLayer::new([rule], CLOSED));
            let server = Server::start(router, http2).await;
            let replies = join_all((0..100).map(|_| server.get())).await;
            assert_eq!(
                replies.iter().filter(|reply| reply.status == 200).count(),
                17
            );
            assert!(
                replies
                    .iter()
                    .filter(|reply| reply.status == 429)
                    .all(|reply| reply.retry_after() == Some(3_600))
            );
            assert_eq!(handled.load(Ordering::SeqCst), 17);
        }
    }
}

#[tokio::test]
async fn a_rule_that_denies_charges_no_other() {
    for (store, clock) in stores() {
        let policies = ["5/1m", "2/1m", "1/1s"];
        let mut names = ["a", "b", "c"].into_iter();
        let limiters = policies.map(|limits| {
            Limiter::new(
                names.next().unwrap(),
                limits.parse::<Policy>().unwrap(),
                store.clone(),
            )
        });
        let rules = limiters
            .clone()
            .map(|limiter| Rule::new(limiter, ClientAddress::peer(), REJECT));
        let app = hello(LimitLayer::new(rules, CLOSED));
        let used = async || used(&limiters.each_ref()).await;
        assert_eq!(get(&app).await.status, 200);
        // The third denies; then all but the first, and the wait is the longest.
        let denied = get(&app).await;
        assert_eq!(
            (denied.status, denied.retry_after(), used().await),
            (429, Some(1), vec![1, 1, 1])
        );
        assert_eq!(
            denied.limits(),
            "\"a\";r=4;t=60, \"b\";r=1;t=60, \"c\";r=0;t=1"
        );
        clock.advance(Duration::from_secs(1));
        assert_eq!(get(&app).await.status, 200);
        for _ in 0..20 {
            let denied = get(&app).await;
            assert_eq!(
                (denied.status, denied.retry_after(), used().await),
                (429, Some(59), vec![2, 2, 1])
            );
            assert_eq!(
                denied.problem()["violated-policies"],
                serde_json::json!(["b", "c"])
            );
        }
        clock.advance(Duration::from_secs(59));
        assert_eq!(get(&app).await.status, 200);
    }
}

#[tokio::test]
async fn a_kept_charge_stays_when_another_rule_denies() {
    for (store, _) in stores() {
        let (account, address) = (
            Limiter::new("account", policy!("1/1m"), store.clone()),
            Limiter::new("address", policy!("3/1m"), store),
        );
        let kept = Rule::new(address.clone(), ClientAddress::peer(), REJECT).keep_charge();
        let app = hello(LimitLayer::new(
            [
                Rule::new(account.clone(), ClientAddress::peer(), REJECT),
                kept,
            ],
            CLOSED,
        ));
        for (status, limits, charges) in [
            (200, "\"account\";r=0;t=60, \"address\";r=2;t=60", [1, 1]),
            (429, "\"account\";r=0;t=60, \"address\";r=1;t=60", [1, 2]),
            (429, "\"account\";r=0;t=60, \"address\";r=0;t=60", [1, 3]),
            (429, "\"account\";r=0;t=60, \"address\";r=0;t=60", [1, 3]),
        ] {
            let reply = get(&app).await;
            assert_eq!((reply.status, reply.limits().as_str()), (status, limits));
            assert_eq!(used(&[&account, &address]).await, charges);
        }
    }
}

#[tokio::test]
async fn a_layer_waits_for_all_rules_within_its_time() {
    // Status and time in seconds. The third request waits 9 s for its second rule.
    for (within, expected) in [
        (
            9_000_000,
            [(200, 0), (200, 1), (200, 10), (200, 11), (200, 20)],
        ),
        (
            8_999_999,
            [(200, 0), (200, 1), (429, 1), (429, 1), (429, 1)],
        ),
    ] {
        for (store, clock) in stores() {
            let begin = Clock::now(&clock);
            let limiters = [("fast", policy!("1/1s")), ("slow", policy!("2/10s"))]
                .map(|(name, policy)| Limiter::new(name, policy, store.clone()));
            let rules = limiters
                .clone()
                .map(|limiter| Rule::new(limiter, ClientAddress::peer(), REJECT));
            let layer = LimitLayer::builder(rules, CLOSED).within(Duration::from_micros(within));
            let _ = clock.clone().auto_advancing();
            let app = hello(layer.build());
            for (status, seconds) in expected {
                let reply = get(&app).await;
                assert_eq!(
                    (reply.status, Clock::now(&clock).micros_since(begin)),
                    (status, seconds * 1_000_000)
                );
                assert_eq!(reply.retry_after(), (status == 429).then_some(9));
            }
            assert_eq!(
                used(&limiters.each_ref()).await,
                [1, 2],
                "denied tries are refunded"
            );
        }
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_a_choice() {
    for (shares, missing, statuses) in [
        (
            false,
            MissingKey::Reject(StatusCode::UNAUTHORIZED),
            [401, 401, 200, 429, 401],
        ),
        (false, MissingKey::Skip, [200, 200, 200, 429, 200]),
        (true, MissingKey::Skip, [200, 429, 200, 429, 429]),
    ] {
        let anonymous = move |_: &RequestHead<'_>| shares.then_some("anonymous");
        let (store, _) = store();
        let all = Limiter::new("all", policy!("9/1m"), store.clone());
        let api = Rule::new(
            Limiter::new("api", policy!("1/1m"), store),
            Header::new(API_KEY).or(anonymous),
            missing,
        );
        let app = hello(LimitLayer::new(
            [Rule::new(all.clone(), ClientAddress::peer(), REJECT), api],
            CLOSED,
        ));
        for (headers, status) in [
            &[][..],
            &[],
            &[("x-api-key", "k")],
            &[("x-api-key", "k")],
            &[("x-api-key", "")],
        ]
        .into_iter()
        .zip(statuses)
        {
            let reply = get_with(&app, "/", headers).await;
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
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(
            used(&[&all]).await,
            [admitted as u64],
            "a refused request is charged nowhere"
        );
    }
}

#[tokio::test]
async fn costs_and_policies_come_from_the_request() {
    for (store, _) in stores() {
        let limiter = Limiter::new("search", policy!("5/1m"), store);
        let gold = policy!("50/1m");
        let rule = Rule::new(limiter.clone(), Constant::new("k"), REJECT).charge(move |head| {
            let cost = head
                .header("x-cost")
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .unwrap_or(1);
            let charge = Charge::units(cost);
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
        let reply = get_with(&app, "/", &[("x-cost", "6")]).await;
        assert_eq!(
            (reply.status, reply.retry_after()),
            (413, None),
            "no wait makes 6 fit 5"
        );
        assert_eq!(
            reply.problem()["violated-policies"],
            serde_json::json!(["search"])
        );
        for (headers, status, limits) in [
            (&[("x-cost", "4")][..], 200, "\"search\";r=1;t=60"),
            (&[("x-cost", "2")], 429, "\"search\";r=1;t=60"),
            (&[("x-cost", "0")], 200, "\"search\";r=1;t=60"),
            (
                &[("x-cost", "20"), ("x-gold", "1")],
                200,
                "\"search\";r=26;t=60",
            ),
            (&[], 429, "\"search\";r=0;t=60"),
        ] {
            let reply = get_with(&app, "/", headers).await;
            assert_eq!(
                (reply.status, reply.limits().as_str()),
                (status, limits),
                "{headers:?}"
            );
        }
        let exempt = get_with(&app, "/health", &[]).await;
        assert_eq!((exempt.status, exempt.limits().as_str()), (200, ""));
        assert_eq!(
            limiter
                .status("k")
                .policy(&policy!("99/1m"))
                .await
                .unwrap()
                .used(),
            24
        );
    }
}

#[tokio::test]
async fn a_cost_above_a_maximum_is_413_whatever_else_denies() {
    let (broken, failing) = crate::common::remote("failing", policy!("9/1m"));
    let full = Limiter::new("full", policy!("6/1m"), store().0);
    assert!(full.acquire("k").cost(6).await.unwrap().is_allowed());
    let small = Limiter::new("small", policy!("5/1m"), store().0);
    for does in [Does::Answer, Does::Refuse] {
        broken.set(does);
        let rules = [&full, &failing, &small];
        let rules = rules.map(|limiter| {
            Rule::new(limiter.clone(), Constant::new("k"), REJECT).charge(|_| Charge {
                cost: 6,
                policy: None,
            })
        });
        let reply = get(&hello(LimitLayer::new(rules, CLOSED))).await;
        assert_eq!((reply.status, reply.retry_after()), (413, None), "{does:?}");
        let violated = &reply.problem()["violated-policies"];
        assert!(
            violated
                .as_array()
                .unwrap()
                .contains(&serde_json::json!("small")),
            "{violated}"
        );
    }
}

/// A mock clock sleeps until the store's time has passed; another one would sleep for a minute.
#[tokio::test]
async fn a_request_waits_by_the_clock_of_the_store() {
    let store = WithClock::new(ReferenceStore::new(), MockClock::new().auto_advancing());
    let limiter = Limiter::new("search", policy!("1/1m"), Arc::new(store) as SharedStore);
    let rule = Rule::new(limiter, Constant::new("k"), REJECT);
    let app = hello(
        LimitLayer::builder([rule], CLOSED)
            .within(Duration::from_secs(60))
            .build(),
    );
    for _ in 0..3 {
        let reply = tokio::time::timeout(Duration::from_secs(20), get(&app))
            .await
            .expect("it waits on another timer");
        assert_eq!(reply.status, 200);
    }
}

#[tokio::test]
async fn keys_combine_and_routes_are_kept_apart() {
    let method = |head: &RequestHead<'_>| Some(head.method().to_string());
    let route = Extension::new(|route: &MatchedPath| route.as_str().to_owned());
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
        assert_eq!(
            get_with(&app, path, headers).await.status,
            status,
            "{path} {headers:?}"
        );
    }
    for key in ["GET,/a/{id},address\\,127.0.0.1", "GET,/b,x-api-key\\,k7"] {
        assert_eq!(limiter.status(key).await.unwrap().used(), 1);
    }
}

#[tokio::test]
async fn shadow_rules_deny_nothing_and_candidates_disturb_no_log() {
    for (store, _) in stores() {
        let enforced = Limiter::new("search", policy!("4/1m"), store.clone());
        let candidate = Limiter::new("search candidate", policy!("2/1m"), store);
        let rules = [
            Rule::new(candidate.clone(), ClientAddress::peer(), REJECT).shadow(),
            Rule::new(enforced.clone(), ClientAddress::peer(), REJECT),
        ];
        let seen: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&seen);
        let layer = LimitLayer::builder(rules, CLOSED).observe(move |seen| {
            assert_eq!(seen.shadow, seen.limiter.as_str() == "search candidate");
            let wait = match seen.outcome {
                RuleOutcome::Denied(decision) => decision.retry_after_secs(),
                _ => None,
            };
            log.lock().unwrap().push(format!(
                "{} {} {wait:?}",
                seen.limiter,
                seen.outcome.as_str()
            ));
        });
        let app = hello(layer.build());
        for i in 0..6 {
            let reply = get(&app).await;
            assert_eq!(reply.status, if i < 4 { 200 } else { 429 });
            assert!(!reply.limits().contains("candidate"));
        }
        assert_eq!(used(&[&enforced, &candidate]).await, [4, 2]);
        let seen = seen.lock().unwrap().clone();
        let candidates: Vec<&String> = seen
            .iter()
            .filter(|line| line.starts_with("search candidate"))
            .collect();
        let admitted = "search candidate admitted None";
        let denied = "search candidate denied Some(60)";
        assert_eq!(
            candidates,
            [admitted, admitted, denied, denied, denied, denied]
        );
        assert_eq!(
            seen.iter()
                .filter(|line| *line == "search denied Some(60)")
                .count(),
            2
        );
    }
}

#[tokio::test]
async fn bodies_and_statuses_are_replaceable() {
    let respond = |rejection: &Rejection| {
        let text = format!(
            "slow down: {:?}, {:?}",
            rejection.violated_policies(),
            rejection.retry_after()
        );
        http::Response::builder()
            .status(420)
            .header("retry-after", "99")
            .body(Body::from(text))
            .unwrap()
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

#[tokio::test]
async fn every_store_and_any_http_service_will_do() {
    let service = tower::service_fn(|_: Request<()>| async {
        Ok::<_, std::io::Error>(http::Response::new(http_body_util::Full::<
            hyper::body::Bytes,
        >::default()))
    });
    let limiter = Limiter::new("plain", policy!("1/1m"), exact_limiter::MemoryStore::new());
    let service =
        LimitLayer::new([Rule::new(limiter, Constant::new("all"), REJECT)], CLOSED).layer(service);
    assert_eq!(
        service
            .clone()
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .status(),
        200
    );
    assert_eq!(
        service.oneshot(Request::new(())).await.unwrap().status(),
        429
    );
}
