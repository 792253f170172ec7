//! Stores that fail or never answer. The runtime's clock is paused: it moves on while all tasks wait.

use std::time::Duration;

use limiter_core::{Error, ErrorKind, Limiter, policy};
use limiter_tower::key::Constant;
use limiter_tower::{LimitLayer, Observation, Rule, StoreFailure};
use tokio::time::Instant;

use crate::common::{CLOSED, Does, REJECT, Remote, Reply, get, hello, store};

const TIMEOUT: Duration = Duration::from_millis(50);

fn rule(limiter: &Limiter) -> Rule {
    Rule::new(limiter.clone(), Constant::new("all"), REJECT)
}

fn remote() -> (Remote, Limiter) {
    crate::common::remote("remote", policy!("2/1m"))
}

fn memory(policy: limiter_core::Policy) -> Limiter {
    Limiter::new("memory", policy, store().0)
}

async fn ask(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Reply {
    let app = hello(LimitLayer::builder(rules, failure).timeout(TIMEOUT).build());
    let begin = Instant::now();
    let reply = get(&app).await;
    assert!(begin.elapsed() < TIMEOUT * 2, "{:?}", begin.elapsed());
    reply
}

#[tokio::test(start_paused = true)]
async fn closed_means_503_and_open_means_unlimited() {
    for does in [Does::Refuse, Does::Hang, Does::ApplyAndHang] {
        let (store, limiter) = remote();
        store.set(does);
        let closed = ask([rule(&limiter)], StoreFailure::Closed { retry_after: Duration::from_millis(1500) }).await;
        assert_eq!((closed.status, closed.retry_after()), (503, Some(2)), "{does:?}");
        let problem = closed.problem();
        assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
        assert_eq!(problem.get("violated-policies"), None);
        assert_eq!(closed.field("ratelimit"), None);
        let open = ask([rule(&limiter)], StoreFailure::Open).await;
        assert_eq!((open.status, open.body.as_str(), open.field("ratelimit")), (200, "hello", None), "{does:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_chooses_by_the_error_and_knows_the_limiter() {
    let by_kind = |error: &Error| match error.kind() {
        ErrorKind::Timeout => StoreFailure::Open,
        _ => StoreFailure::Closed { retry_after: Duration::ZERO },
    };
    let by_name = |error: &Error| match error.limiter_name() {
        Some("remote") => CLOSED,
        _ => StoreFailure::Open,
    };
    let (store, limiter) = remote();
    for (does, timed_out, known) in [(Does::Hang, 200, 503), (Does::Refuse, 503, 503)] {
        store.set(does);
        let reply = ask([rule(&limiter)], StoreFailure::choose(by_kind)).await;
        assert_eq!((reply.status, reply.retry_after()), (timed_out, (timed_out == 503).then_some(1)), "never 0");
        assert_eq!(ask([rule(&limiter)], StoreFailure::choose(by_name)).await.status, known, "{does:?}");
    }
}

#[tokio::test]
async fn open_skips_the_failed_rule_only_and_closed_charges_no_other() {
    let (broken, remote) = remote();
    broken.set(Does::Refuse);
    let one = memory(policy!("1/1m"));
    let reply = ask([rule(&remote), rule(&one)], StoreFailure::Open).await;
    assert_eq!((reply.status, reply.limits().as_str()), (200, "\"memory\";r=0;t=60"));
    assert_eq!(ask([rule(&remote), rule(&one)], StoreFailure::Open).await.status, 429);
    let five = memory(policy!("5/1m"));
    assert_eq!(ask([rule(&five), rule(&remote)], CLOSED).await.status, 503);
    assert_eq!(five.status("all").await.unwrap().used(), 0);
    assert_eq!(ask([rule(&five), rule(&remote).shadow()], CLOSED).await.status, 200, "a shadow rule denies nothing");
}

#[tokio::test]
async fn a_shadow_rule_whose_store_fails_is_reported_as_open() {
    let (store, limiter) = remote();
    store.set(Does::Refuse);
    let (sender, reports) = std::sync::mpsc::channel();
    let report = move |seen: &Observation<'_>| sender.send(seen.outcome.as_str()).unwrap();
    let layer = LimitLayer::builder([rule(&limiter).shadow()], CLOSED).observe(report).build();
    assert_eq!(get(&hello(layer)).await.status, 200);
    assert_eq!(reports.recv().unwrap(), "failed_open");
}

/// Without a runtime of tokio there is no timer, and a hanging store would hang the request.
#[test]
fn without_a_timer_a_store_that_needs_a_future_has_failed() {
    let (store, limiter) = remote();
    store.set(Does::Hang);
    let app = hello(LimitLayer::new([rule(&limiter)], CLOSED));
    assert_eq!(futures::executor::block_on(get(&app)).status, 503);
}
