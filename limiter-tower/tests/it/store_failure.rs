//! Stores that fail or never answer. The runtime's clock is paused: it moves on while all tasks wait.

use std::time::Duration;

use limiter_core::{Limiter, policy};
use limiter_tower::{LimitLayer, Observation, Rule, StoreFailure};
use tokio::time::Instant;

use crate::common::{CLOSED, Does, Remote, Reply, get, hello, shared, store, used};

const TIMEOUT: Duration = Duration::from_millis(50);

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
        for (millis, seconds) in [(1500, 2), (0, 1)] {
            let closed = StoreFailure::Closed {
                retry_after: Duration::from_millis(millis),
            };
            let closed = ask([shared(&limiter)], closed).await;
            let found = (closed.status, closed.retry_after());
            assert_eq!(found, (503, Some(seconds)), "{does:?}");
            let problem = closed.problem();
            let kind = problem["type"].as_str().unwrap();
            assert!(
                kind.ends_with("problem-types#temporary-reduced-capacity"),
                "{kind}"
            );
            assert_eq!(problem.get("violated-policies"), None);
            assert_eq!(closed.field("ratelimit"), None);
        }
        let open = ask([shared(&limiter)], StoreFailure::Open).await;
        assert_eq!(
            (open.status, open.body.as_str()),
            (200, "hello"),
            "{does:?}"
        );
        assert_eq!(open.field("ratelimit"), None);
    }
}

/// A wrong password, a missing permission or a damaged log would otherwise lift the limit until somebody notices. No retry mends it,
/// even if another store may be back by then.
#[tokio::test]
async fn only_a_store_that_is_down_opens_a_limit_and_asks_for_a_retry() {
    for (does, open, retry_after) in [
        (Does::Refuse, 200, Some(1)),
        (Does::LoseAnswer, 200, Some(1)),
        (Does::Misconfigure, 503, None),
        (Does::Corrupt, 503, None),
        (Does::Contradict, 503, None),
    ] {
        let [(down, first), (store, second)] = [(); 2].map(|()| remote());
        down.set(Does::Refuse);
        store.set(does);
        let rules = || [shared(&first), shared(&second)];
        let reply = ask(rules(), StoreFailure::Open).await;
        let expected = retry_after.filter(|_| open == 503);
        assert_eq!(
            (reply.status, reply.retry_after()),
            (open, expected),
            "{does:?}"
        );
        let reply = ask(rules(), CLOSED).await;
        assert_eq!(
            (reply.status, reply.retry_after()),
            (503, retry_after),
            "{does:?}"
        );
    }
}

#[tokio::test]
async fn open_skips_the_failed_rule_only_and_closed_charges_no_other() {
    let (broken, remote) = remote();
    broken.set(Does::Refuse);
    let one = memory(policy!("1/1m"));
    for status in [200, 429] {
        let reply = ask([shared(&remote), shared(&one)], StoreFailure::Open).await;
        let found = (reply.status, reply.limits());
        assert_eq!(found, (status, "\"memory\";r=0;t=60".to_owned()));
    }
    let five = memory(policy!("5/1m"));
    let closed = ask([shared(&five), shared(&remote)], CLOSED).await;
    assert_eq!((closed.status, used(&five).await), (503, 0));
    // A shadow rule never denies.
    let shadow = ask([shared(&five), shared(&remote).shadow()], CLOSED).await;
    assert_eq!(shadow.status, 200);
}

#[tokio::test]
async fn a_shadow_rule_whose_store_fails_is_reported_as_open() {
    let (store, limiter) = remote();
    store.set(Does::Refuse);
    let (sender, reports) = std::sync::mpsc::channel();
    let report = move |seen: &Observation<'_>| sender.send(seen.outcome.as_str()).unwrap();
    let layer = LimitLayer::builder([shared(&limiter).shadow()], CLOSED)
        .observe(report)
        .build();
    assert_eq!(get(&hello(layer)).await.status, 200);
    assert_eq!(reports.recv().unwrap(), "failed_open");
}

/// Without a runtime of tokio there is no timer, and a hanging store would hang the request.
#[test]
fn without_a_timer_a_store_that_needs_a_future_has_failed() {
    let (store, limiter) = remote();
    store.set(Does::Hang);
    let app = hello(LimitLayer::new([shared(&limiter)], CLOSED));
    assert_eq!(futures::executor::block_on(get(&app)).status, 503);
}
