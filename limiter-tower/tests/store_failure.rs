//! Stores that fail or never answer.

mod common;

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use common::stores::{Mood, Remote};
use common::{CLOSED, REJECT, Reply, Server, store};
use limiter_core::{Limiter, SharedStore, policy};
use limiter_tower::key::Constant;
use limiter_tower::{Charge, LimitLayer, Rule, StoreFailure};

const TIMEOUT: Duration = Duration::from_millis(50);

fn rule(limiter: &Limiter<impl limiter_core::WindowStore + Clone>) -> Rule {
    Rule::new(limiter.clone(), Constant::new("all"), REJECT)
}

fn remote() -> (Remote<SharedStore>, Limiter<Remote<SharedStore>>) {
    let store = Remote::new(store().0);
    (store.clone(), Limiter::new("remote", policy!("2/1m"), store))
}

async fn ask(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Reply {
    let layer = LimitLayer::builder(rules, failure).timeout(TIMEOUT).build();
    let server = Server::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
    let begin = Instant::now();
    let reply = server.get("/").await;
    assert!(begin.elapsed() < TIMEOUT * 20, "{:?}", begin.elapsed());
    reply
}

#[tokio::test]
async fn closed_means_503_and_open_means_unlimited() {
    for mood in [Mood::Failing, Mood::Hanging, Mood::Silent] {
        let (store, limiter) = remote();
        store.set(mood);
        let closed = ask([rule(&limiter)], StoreFailure::Closed { retry_after: Duration::from_millis(1500) }).await;
        assert_eq!((closed.status, closed.retry_after()), (503, Some(2)), "{mood:?}");
        let problem: serde_json::Value = serde_json::from_str(&closed.body).unwrap();
        assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
        assert_eq!(problem["status"], 503);
        assert_eq!(problem.get("violated-policies"), None);
        assert_eq!(closed.field("ratelimit"), None);
        let open = ask([rule(&limiter)], StoreFailure::Open).await;
        assert_eq!((open.status, open.body.as_str(), open.field("ratelimit")), (200, "hello", None), "{mood:?}");
    }
}

#[tokio::test]
async fn a_function_chooses_by_the_error() {
    let choice = || {
        StoreFailure::choose(|error| match error.kind() {
            limiter_core::ErrorKind::Timeout => StoreFailure::Open,
            _ => StoreFailure::Closed { retry_after: Duration::ZERO },
        })
    };
    let (store, limiter) = remote();
    store.set(Mood::Hanging);
    assert_eq!(ask([rule(&limiter)], choice()).await.status, 200);
    store.set(Mood::Failing);
    let closed = ask([rule(&limiter)], choice()).await;
    assert_eq!((closed.status, closed.retry_after()), (503, Some(1)), "never 0");
}

#[tokio::test]
async fn a_function_knows_the_limiter_of_every_failure() {
    let choice = || {
        StoreFailure::choose(|error| match error.limiter_name() {
            Some("remote") => CLOSED,
            _ => StoreFailure::Open,
        })
    };
    let (store, limiter) = remote();
    for mood in [Mood::Failing, Mood::Hanging] {
        store.set(mood);
        assert_eq!(ask([rule(&limiter)], choice()).await.status, 503, "{mood:?}");
    }
    let error = || limiter_core::Error::new(limiter_core::ErrorKind::Unavailable, "no database");
    let failing = rule(&limiter).charge_async(move |_| std::future::ready(Err(error())));
    assert_eq!(ask([failing], choice()).await.status, 503);
}

#[tokio::test]
async fn open_skips_the_failed_rule_only() {
    let (broken, remote) = remote();
    broken.set(Mood::Failing);
    let memory = Limiter::new("memory", policy!("1/1m"), store().0);
    let reply = ask([rule(&remote), rule(&memory)], StoreFailure::Open).await;
    assert_eq!((reply.status, reply.field("ratelimit").as_deref()), (200, Some("\"memory\";r=0;t=60")));
    assert_eq!(ask([rule(&remote), rule(&memory)], StoreFailure::Open).await.status, 429);
}

#[tokio::test]
async fn closed_charges_no_other_rule() {
    let (broken, remote) = remote();
    broken.set(Mood::Failing);
    let memory = Limiter::new("memory", policy!("5/1m"), store().0);
    assert_eq!(ask([rule(&memory), rule(&remote)], CLOSED).await.status, 503);
    assert_eq!(memory.status("all").await.unwrap().used(), 0);
}

#[tokio::test]
async fn a_shadow_rule_that_fails_denies_nothing() {
    let (broken, remote) = remote();
    broken.set(Mood::Failing);
    let memory = Limiter::new("memory", policy!("5/1m"), store().0);
    assert_eq!(ask([rule(&memory), rule(&remote).shadow()], CLOSED).await.status, 200);
}

#[tokio::test]
async fn a_shadow_rule_whose_look_up_fails_is_reported_as_open() {
    let error = || limiter_core::Error::new(limiter_core::ErrorKind::Unavailable, "no database");
    let memory = Limiter::new("memory", policy!("5/1m"), store().0);
    let shadow = rule(&memory).charge_async(move |_| std::future::ready(Err(error()))).shadow();
    let (sender, reports) = std::sync::mpsc::channel();
    let report = move |seen: &limiter_tower::Observation<'_>| sender.send(seen.outcome.as_str()).unwrap();
    let layer = LimitLayer::builder([shadow], CLOSED).observe(report).build();
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await;
    assert_eq!(server.get("/").await.status, 200);
    assert_eq!(reports.recv().unwrap(), "failed_open");
}

#[tokio::test]
async fn a_look_up_that_hangs_or_fails_is_a_failed_store() {
    let memory = || Limiter::new("memory", policy!("5/1m"), store().0);
    let hanging = rule(&memory()).charge_async(|_| std::future::pending());
    assert_eq!(ask([hanging], CLOSED).await.status, 503);
    let error = || limiter_core::Error::new(limiter_core::ErrorKind::Unavailable, "no database");
    let failing = rule(&memory()).charge_async(move |_| std::future::ready(Err(error())));
    assert_eq!(ask([failing], CLOSED).await.status, 503);
    let fine = rule(&memory()).charge_async(|_| std::future::ready(Ok(Charge::units(2))));
    assert_eq!(ask([fine], CLOSED).await.field("ratelimit").as_deref(), Some("\"memory\";r=3;t=60"));
}

#[tokio::test]
async fn the_service_recovers_with_its_store() {
    let (store, limiter) = remote();
    let layer = LimitLayer::builder([rule(&limiter)], CLOSED).timeout(TIMEOUT).build();
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await;
    let mut statuses = Vec::new();
    for mood in [Mood::Well, Mood::Failing, Mood::Hanging, Mood::Well, Mood::Well] {
        store.set(mood);
        statuses.push(server.get("/").await.status);
    }
    assert_eq!(statuses, [200, 503, 503, 200, 429]);
}

/// Without a runtime of tokio there is no timer, and a hanging store would hang the request.
#[test]
fn without_a_timer_a_store_that_needs_a_future_has_failed() {
    let (store, limiter) = remote();
    store.set(Mood::Hanging);
    let service = tower::service_fn(|_: http::Request<()>| async {
        Ok::<_, std::io::Error>(http::Response::new(http_body_util::Full::<hyper::body::Bytes>::default()))
    });
    let service = tower::Layer::layer(&LimitLayer::new([rule(&limiter)], CLOSED), service);
    let response = futures::executor::block_on(tower::ServiceExt::oneshot(service, http::Request::new(()))).unwrap();
    assert_eq!(response.status(), 503);
}
