//! Charging what a request turned out to cost.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::{Extension, Router};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use limiter_core::{ErrorKind, Limiter, SharedStore, policy};
use limiter_tower::{ActualCost, Charge, Charges, LimitLayer, ResponseHead, Rule};
use tower::ServiceExt;

use crate::common::{
    CLOSED, Does, Remote, get, get_with, hello, remote, serve, shared, store, used,
};

/// A service with one password, behind a rule that settles a good login so.
fn login(limiter: &Limiter, good: ActualCost) -> Router {
    let login = shared(limiter).settle(move |response| match response.status() {
        StatusCode::OK => good,
        _ => ActualCost::AsCharged,
    });
    let login = login.unwrap();
    let handler = |Query(login): Query<std::collections::HashMap<String, String>>| async move {
        if login["password"] == "right" {
            StatusCode::OK
        } else {
            StatusCode::UNAUTHORIZED
        }
    };
    serve([login], handler)
}

#[tokio::test]
async fn a_good_login_is_refunded_or_resets_its_key() {
    // Each password with the units that are left after it.
    for (good, logins) in [
        (
            ActualCost::Nothing,
            "right 3, right 3, wrong 2, right 2, wrong 1, wrong 0, right 0",
        ),
        (
            ActualCost::Reset,
            "wrong 2, wrong 1, right 3, wrong 2, wrong 1, wrong 0, right 0",
        ),
    ] {
        let (_, limiter) = remote("limit", policy!("3/1m"));
        let app = login(&limiter, good);
        let log_in = async |password| get_with(&app, &format!("/?password={password}"), &[]).await;
        for step in logins.split(", ") {
            let (password, left) = step.split_once(' ').unwrap();
            let full = if left == "3" { "" } else { ";t=60" };
            let limits = format!("\"limit\";r={left}{full}");
            assert_eq!(log_in(password).await.limits(), limits, "{good:?} {step}");
        }
        assert_eq!(log_in("right").await.status, 429, "{good:?}");
    }
}

/// How many tokens a handler used.
#[derive(Clone)]
struct Tokens(u64);

#[tokio::test]
async fn tokens_and_bytes_are_charged_from_the_response() {
    let (_, limiter) = remote("limit", policy!("1000/1m"));
    let tokens = |response: &ResponseHead<'_>| match response.extensions().get() {
        Some(Tokens(used)) => ActualCost::Units(*used),
        None => ActualCost::AsCharged,
    };
    let bytes =
        |response: &ResponseHead<'_>| ActualCost::Units(response.content_length().unwrap_or(0));
    let tokens = shared(&limiter)
        .charge(|_| Charge::units(400))
        .settle(tokens);
    let (_, traffic) = remote("limit", policy!("1000/1m"));
    let rules = [tokens.unwrap(), shared(&traffic).settle(bytes).unwrap()];
    let chat = || async { (Extension(Tokens(30)), "three short words") };
    let reply = get(&serve(rules, chat)).await;
    assert_eq!(reply.limits(), "\"limit\";r=970;t=60, \"limit\";r=983;t=60");
    assert_eq!((used(&limiter).await, used(&traffic).await), (30, 17));
}

/// With a paused clock, a sleep ends when all tasks have done what they can.
#[tokio::test(start_paused = true)]
async fn a_meter_charges_what_was_used_however_the_work_ends() {
    // What the handler does after a prompt of seven tokens: it sends a token (t), lets a window pass (w), learns that a hundred tokens
    // were used (u), fails (f) or never ends (n). What the store does with the first settlements and records, how many of them it gets,
    // and what counts in the end.
    for (work, does, calls, expected) in [
        ("ttt", &[][..], 1, 10),
        ("ttu", &[], 1, 100),
        ("ttft", &[], 1, 9),
        ("tn", &[], 1, 8),
        ("n", &[], 1, 7),
        (
            "ttt",
            &[Does::Refuse, Does::LoseAnswer, Does::Refuse],
            4,
            10,
        ),
        ("ttt", &[Does::Misconfigure], 1, 400),
        ("ttt", &[Does::Hang], 1, 400),
        ("ttt", &[Does::Refuse; 99], 11, 400),
        ("tw", &[], 3, 8),
        ("tw", &[Does::Refuse], 4, 8),
        // The record counts, and is not repeated.
        ("tw", &[Does::Answer, Does::Answer, Does::LoseAnswer], 3, 8),
    ] {
        let (inner, clock) = store();
        let store = Remote::new(inner);
        let limiter =
            Limiter::new("limit", policy!("1000/1m"), Arc::new(store.clone())).into_shared();
        let rule = shared(&limiter).charge(|_| Charge::units(400));
        let mut does = does.iter();
        store.rule(move |verb, _| match verb {
            "settle" | "record" => *does.next().unwrap_or(&Does::Answer),
            _ => Does::Answer,
        });
        let handler = move |Extension(charges): Extension<Charges>| async move {
            let mut meter = charges.meter(7);
            if work == "n" {
                std::future::pending::<()>().await;
            }
            Body::from_stream(futures::stream::iter(work.chars()).then(move |step| {
                match step {
                    't' => meter.add(1),
                    'u' => meter.set(100),
                    'w' => {
                        clock.advance(Duration::from_secs(60));
                    }
                    _ => {}
                }
                async move {
                    match step {
                        'f' => Err(std::io::Error::other("the model failed")),
                        'n' => std::future::pending().await,
                        _ => Ok("token "),
                    }
                }
            }))
        };
        let app = serve([rule.settle_in_handler().unwrap()], handler);
        let request = Request::get("/").body(Body::empty()).unwrap();
        let read = async {
            app.oneshot(request)
                .await
                .unwrap()
                .into_body()
                .collect()
                .await
        };
        _ = tokio::time::timeout(Duration::from_secs(1), read).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        let found = store.calls_to("settle") + store.calls_to("record");
        assert_eq!((found, used(&limiter).await), (calls, expected), "{work}");
    }
}

#[test]
fn without_a_runtime_a_meter_settles_in_memory_alone() {
    // Whether the store is immediate, whether there is a runtime without timers, and what counts in the end.
    for (immediate, runs, expected) in [(true, false, 3), (false, false, 400), (false, true, 400)] {
        let (inner, _) = store();
        let remote: SharedStore = if immediate {
            inner
        } else {
            Arc::new(Remote::new(inner))
        };
        let limiter = Limiter::new("limit", policy!("1000/1m"), remote);
        let work = async {
            let permit = limiter.acquire("k").cost(400).permit().await.unwrap();
            let permit = permit.into_result().unwrap().into_owned();
            drop(Charges::from_iter([permit]).meter(3));
            used(&limiter).await
        };
        let used = if runs {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(work)
        } else {
            futures::executor::block_on(work)
        };
        assert_eq!(used, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_while_settling_keeps_the_charge() {
    for does in [Does::Refuse, Does::Hang] {
        let (remote, limiter) = remote("limit", policy!("3/1m"));
        let store = remote.clone();
        let handler = move || async move { store.set(does) };
        let refunded = shared(&limiter).settle(|_| ActualCost::Nothing).unwrap();
        let reply = get(&serve([refunded], handler)).await;
        assert_eq!(
            (reply.status, reply.limits().as_str()),
            (200, "\"limit\";r=2;t=60")
        );
        remote.set(Does::Answer);
        assert_eq!(used(&limiter).await, 1);
    }
}

#[tokio::test]
async fn a_rule_that_settles_needs_an_exact_limit() {
    let (_, limiter) = remote("limit", policy!("9/1m~1s, 99/1h~1s"));
    for rule in [
        shared(&limiter).settle(|_| ActualCost::Nothing),
        shared(&limiter).settle_in_handler(),
        shared(&limiter).refund_abandoned(),
    ] {
        let error = rule.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NeedsExactLimit);
        let text = "limiter \"limit\": permits and idempotency keys need an exact limit: ";
        assert!(error.to_string().starts_with(text), "{error}");
    }
    let (_, exact) = remote("limit", policy!("9/1m, 99/1h~1s"));
    assert!(shared(&exact).settle_in_handler().is_ok());
}

/// A service whose handler ends with a panic or not at all.
fn endless(rule: Rule, panics: bool) -> Router {
    let handler = move || async move {
        assert!(!panics, "a handler that panics");
        std::future::pending::<()>().await;
    };
    serve([rule], handler)
}

/// With a paused clock, a sleep ends when all tasks have done what they can.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_response_stays_charged_unless_the_rule_refunds() {
    let (_, limiter) = remote("limit", policy!("9/1m"));
    let refunds = || shared(&limiter).refund_abandoned().unwrap();
    let settles = shared(&limiter).settle(|_| ActualCost::Nothing).unwrap();
    for (panics, rule, expected) in [
        (false, shared(&limiter), 1),
        (true, shared(&limiter), 2),
        // There is no response to settle from.
        (false, settles, 3),
        (false, refunds(), 3),
        (true, refunds(), 3),
    ] {
        let request = async move { get(&endless(rule, panics)).await };
        let gone = tokio::spawn(tokio::time::timeout(Duration::from_millis(50), request)).await;
        assert!(gone.is_err() == panics && gone.ok().is_none_or(|late| late.is_err()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(used(&limiter).await, expected);
    }
    let finished = LimitLayer::new([refunds()], CLOSED);
    assert_eq!(get(&hello(finished)).await.status, 200);
    tokio::time::sleep(Duration::from_millis(50)).await;
    // A finished request is refunded by its hook alone.
    assert_eq!(used(&limiter).await, 4);
}
