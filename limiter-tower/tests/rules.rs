//! Which requests are charged, under several rules, many at once.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use common::stores::Remote;
use common::{CLOSED, REJECT, Server, request_from, rule, store};
use futures::future::join_all;
use http::{HeaderName, Request, StatusCode};
use limiter_core::{Limiter, SharedStore, policy};
use limiter_tower::Outcome;
use limiter_tower::key::{Constant, Header, MatchedPath, Method, PeerAddress, RequestKey};
use limiter_tower::{Charge, LimitLayer, MissingKey, Rule};
use tower::ServiceExt;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The stores that rules are tested on: one answers at once, one needs a future.
fn stores() -> [(SharedStore, limiter_testkit::MockClock); 2] {
    let (at_once, first) = store();
    let (remote, second) = store();
    [(at_once, first), (Arc::new(Remote::new(remote)), second)]
}

fn counted(layer: LimitLayer) -> (Router, Arc<AtomicUsize>) {
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&handled);
    let handler = move || async move {
        counter.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    (Router::new().route("/", get(handler)).layer(layer), handled)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_concurrent_requests_exactly_the_maximum_runs() {
    for (store, _) in stores() {
        for http2 in [false, true] {
            let name = if http2 { "burst over HTTP/2" } else { "burst" };
            let rule = Rule::new(Limiter::new(name, policy!("17/1h"), store.clone()), PeerAddress::new(), REJECT);
            let (router, handled) = counted(LimitLayer::new([rule], CLOSED));
            let server = if http2 { Server::start_http2(router).await } else { Server::start(router).await };
            let replies = join_all((0..100).map(|_| server.get("/"))).await;
            assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), 17);
            assert!(replies.iter().filter(|reply| reply.status == 429).all(|reply| reply.retry_after() >= Some(3_599)));
            assert_eq!(handled.load(Ordering::SeqCst), 17);
        }
    }
}

#[tokio::test]
async fn a_rule_that_denies_charges_no_other() {
    for (store, clock) in stores() {
        let limiter = |name, policy| Limiter::new(name, policy, store.clone());
        let (first, second, third) =
            (limiter("a", policy!("5/1m")), limiter("b", policy!("2/1m")), limiter("c", policy!("1/1s")));
        let rules = [&first, &second, &third].map(|limiter| Rule::new(limiter.clone(), PeerAddress::new(), REJECT));
        let (router, handled) = counted(LimitLayer::new(rules, CLOSED));
        let server = Server::start(router).await;
        let used = async || {
            let used =
                [&first, &second, &third].map(|limiter| async { limiter.status("127.0.0.1").await.unwrap().used() });
            join_all(used).await
        };
        assert_eq!(server.get("/").await.status, 200);
        // The third denies; then all but the first, and the wait is the longest.
        let denied = server.get("/").await;
        assert_eq!((denied.status, denied.retry_after(), used().await), (429, Some(1), vec![1, 1, 1]));
        assert_eq!(denied.field("ratelimit").unwrap(), "\"a\";r=4;t=60, \"b\";r=1;t=60, \"c\";r=0;t=1");
        clock.advance(Duration::from_secs(1));
        assert_eq!(server.get("/").await.status, 200);
        let denied = server.get("/").await;
        assert_eq!((denied.status, denied.retry_after(), used().await), (429, Some(59), vec![2, 2, 1]));
        assert!(denied.body.contains("\"violated-policies\":[\"b\",\"c\"]"), "{}", denied.body);
        for _ in 0..20 {
            assert_eq!(server.get("/").await.status, 429);
        }
        assert_eq!((used().await, handled.load(Ordering::SeqCst)), (vec![2, 2, 1], 2));
        clock.advance(Duration::from_secs(59));
        assert_eq!(server.get("/").await.status, 200);
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_a_choice() {
    let statuses = async |missing: MissingKey| {
        let (store, _) = store();
        let rule = Rule::new(Limiter::new("api", policy!("1/1m"), store), Header::new(API_KEY), missing);
        let (router, _) = counted(LimitLayer::new([rule], CLOSED));
        let server = Server::start(router).await;
        let mut statuses = Vec::new();
        for key in [None, None, Some("k"), Some("k"), Some("")] {
            let headers: Vec<(&str, &str)> = key.map(|key| ("x-api-key", key)).into_iter().collect();
            statuses.push(server.get_with("/", &headers).await.status);
        }
        statuses
    };
    assert_eq!(statuses(MissingKey::Reject(StatusCode::UNAUTHORIZED)).await, [401, 401, 200, 429, 401]);
    assert_eq!(statuses(MissingKey::Skip).await, [200, 200, 200, 429, 200]);
    assert_eq!(statuses(MissingKey::share("anonymous")).await, [200, 429, 200, 429, 429]);
}

#[tokio::test]
async fn a_rejected_request_is_charged_nowhere() {
    let (store, _) = store();
    let all = Limiter::new("all", policy!("9/1m"), store.clone());
    let api = Rule::new(Limiter::new("api", policy!("9/1m"), store), Header::new(API_KEY), REJECT);
    let (router, _) = counted(LimitLayer::new([Rule::new(all.clone(), Constant::new("all"), REJECT), api], CLOSED));
    let response = router.oneshot(request_from("192.0.2.1:80")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(all.status("all").await.unwrap().used(), 0);
}

#[tokio::test]
async fn costs_and_policies_come_from_the_request() {
    for (store, _) in stores() {
        let limiter = Limiter::new("search", policy!("5/1m"), store);
        let gold = Arc::new(policy!("50/1m"));
        let rule = Rule::new(limiter.clone(), Constant::new("k"), REJECT).charge_async(move |head| {
            let cost = head.header("x-cost").and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(1);
            let gold = head.header("x-gold").map(|_| Arc::clone(&gold));
            async move {
                tokio::task::yield_now().await;
                Ok(Charge { cost, policy: gold })
            }
        });
        let rule = rule.exempt(|head| head.path() == "/health");
        let (router, _) = counted(LimitLayer::new([rule], CLOSED));
        let server = Server::start(router.route("/health", get(|| async {}))).await;
        let reply = server.get_with("/", &[("x-cost", "6")]).await;
        assert_eq!((reply.status, reply.retry_after()), (429, None), "no wait makes 6 fit 5");
        assert!(reply.body.contains("violated-policies\":[\"search\"]"), "{}", reply.body);
        assert_eq!(server.get_with("/", &[("x-cost", "4")]).await.field("ratelimit").unwrap(), "\"search\";r=1;t=60");
        assert_eq!(server.get_with("/", &[("x-cost", "2")]).await.status, 429);
        assert_eq!(server.get_with("/", &[("x-cost", "0")]).await.field("ratelimit").unwrap(), "\"search\";r=1;t=60");
        let gold = server.get_with("/", &[("x-cost", "20"), ("x-gold", "1")]).await;
        assert_eq!(gold.field("ratelimit").unwrap(), "\"search\";r=26;t=60");
        assert_eq!(server.get("/").await.status, 429);
        assert_eq!(limiter.status("k").policy(&policy!("99/1m")).await.unwrap().used(), 24);
    }
}

#[tokio::test]
async fn keys_combine_and_routes_are_kept_apart() {
    let (store, _) = store();
    let key = (Method, MatchedPath, Header::new(API_KEY).or(PeerAddress::new()));
    let limiter = Limiter::new("route", policy!("1/1m"), store);
    let layer = LimitLayer::new([Rule::new(limiter.clone(), key, REJECT)], CLOSED);
    let routes = Router::new().route("/a/{id}", get(|| async {}).post(|| async {})).route("/b", get(|| async {}));
    let server = Server::start(routes.layer(layer)).await;
    assert_eq!(server.get("/a/1").await.status, 200);
    assert_eq!(server.get("/a/2").await.status, 429, "one route");
    assert_eq!(server.get("/b").await.status, 200);
    assert_eq!(server.get_with("/b", &[("x-api-key", "k7")]).await.status, 200);
    assert_eq!(server.get_with("/b", &[("x-api-key", "k7")]).await.status, 429);
    assert_eq!(limiter.status("GET,/a/{id},address\\,127.0.0.1").await.unwrap().used(), 1);
    assert_eq!(limiter.status("GET,/b,x-api-key\\,k7").await.unwrap().used(), 1);
}

#[tokio::test]
async fn one_limit_holds_for_all_clones_and_routes_of_a_layer() {
    let (rule, _) = rule("all", policy!("3/1m"));
    let layer = LimitLayer::new([rule], CLOSED);
    let routes = || Router::new().route("/", get(|| async {})).layer(layer.clone());
    let (first, second) = (Server::start(routes()).await, Server::start(routes()).await);
    assert_eq!(first.get("/").await.status, 200);
    assert_eq!(second.get("/").await.status, 200);
    assert_eq!(first.get("/").await.status, 200);
    assert_eq!(second.get("/").await.status, 429);
}

#[tokio::test]
async fn shadow_rules_deny_nothing_and_candidates_disturb_no_log() {
    for (store, _) in stores() {
        let enforced = Limiter::new("search", policy!("4/1m"), store.clone());
        let candidate = Limiter::new("search candidate", policy!("2/1m"), store);
        let rules = [
            Rule::new(candidate.clone(), PeerAddress::new(), REJECT).shadow(),
            Rule::new(enforced.clone(), PeerAddress::new(), REJECT),
        ];
        let seen: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&seen);
        let layer = LimitLayer::builder(rules, CLOSED).observe(move |seen| {
            assert_eq!(seen.shadow, seen.limiter.as_str() == "search candidate");
            let wait = match seen.outcome {
                Outcome::Denied(decision) => decision.retry_after_secs(),
                _ => None,
            };
            log.lock().unwrap().push(format!("{} {} {wait:?}", seen.limiter, seen.outcome.as_str()));
        });
        let server = Server::start(counted(layer.build()).0).await;
        for i in 0..6 {
            let reply = server.get("/").await;
            assert_eq!(reply.status, if i < 4 { 200 } else { 429 });
            assert!(!reply.field("ratelimit").unwrap().contains("candidate"));
        }
        let used = async |limiter: &Limiter| limiter.status("127.0.0.1").await.unwrap().used();
        assert_eq!((used(&enforced).await, used(&candidate).await), (4, 2));
        let seen = seen.lock().unwrap().clone();
        let candidates: Vec<&String> = seen.iter().filter(|line| line.starts_with("search candidate")).collect();
        let admitted = "search candidate admitted None";
        let denied = "search candidate denied Some(60)";
        assert_eq!(candidates, [admitted, admitted, denied, denied, denied, denied]);
        assert_eq!(seen.iter().filter(|line| *line == "search denied Some(60)").count(), 2);
    }
}

#[tokio::test]
async fn bodies_and_statuses_are_replaceable() {
    let (rule, _) = rule("search", policy!("1/10s"));
    let respond = |refusal: &limiter_tower::Refusal| {
        let text = format!("slow down: {:?}, {:?}", refusal.violated_policies(), refusal.retry_after());
        http::Response::builder().status(420).header("retry-after", "99").body(Body::from(text)).unwrap()
    };
    let layer = LimitLayer::builder([rule], CLOSED).respond_with(respond).build();
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await;
    server.get("/").await;
    let denied = server.get("/").await;
    assert_eq!((denied.status, denied.retry_after()), (420, Some(99)));
    assert_eq!(denied.body, "slow down: [\"search\"], Some(10s)");
    assert!(denied.field("ratelimit").is_some());
}

#[tokio::test]
async fn every_store_and_any_http_service_will_do() {
    let service = tower::service_fn(|_: Request<()>| async {
        Ok::<_, std::io::Error>(http::Response::new(http_body_util::Full::<hyper::body::Bytes>::default()))
    });
    let limiter = Limiter::new("plain", policy!("1/1m"), limiter_memory::MemoryStore::new());
    let layer = LimitLayer::new([Rule::new(limiter, Constant::new("all"), REJECT)], CLOSED);
    let service = tower::Layer::layer(&layer, service);
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(Request::new(())).await.unwrap().status(), 429);
}
