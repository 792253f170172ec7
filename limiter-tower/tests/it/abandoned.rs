//! Charges of requests whose client or whose store failed before the decision.

use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use futures::future::join_all;
use limiter_core::{Limiter, Policy, policy};
use limiter_tower::LimitLayer;

use crate::common::{CLOSED, Does, eventually, get, hello, remote, serve, shared, store, used};

const POLICY: Policy = policy!("1000/1h");

fn limited(limiters: [&Limiter; 2]) -> Router {
    hello(LimitLayer::new(limiters.map(shared), CLOSED))
}

/// With a paused clock, a sleep ends when all tasks have done what they can.
#[tokio::test(start_paused = true)]
async fn charges_before_a_rule_that_hangs_are_refunded() {
    for does in [Does::Hang, Does::ApplyAndHang] {
        let [(_, charged), (store, hanging)] = [(); 2].map(|()| remote("limit", POLICY));
        store.set(does);
        let app = limited([&charged, &hanging]);
        for _ in 0..5 {
            assert_eq!(get(&app).await.status, 503);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(used(&charged).await, 0, "{does:?}");
    }
}

/// Where the shared rule comes last, a client that its own rule denies never charges it.
#[tokio::test(start_paused = true)]
async fn a_client_that_resets_its_streams_leaves_what_was_charged_by_then() {
    for (shared_is_first, charged) in [(true, 200), (false, 0)] {
        let (shared_store, shared) = remote("limit", POLICY);
        let own = Limiter::new("own", policy!("1/1h"), store().0);
        assert!(own.acquire("k").await.unwrap().is_allowed());
        shared_store.rule(|verb, _| [Does::Answer, Does::Hang][usize::from(verb == "settle")]);
        let rules = [&shared, &own];
        let app = limited(if shared_is_first {
            rules
        } else {
            [&own, &shared]
        });
        let requests = join_all((0..200).map(|_| get(&app)));
        // The requests are dropped while their refunds hang.
        let replies = tokio::time::timeout(Duration::from_millis(50), requests).await;
        assert_eq!(replies.is_err(), shared_is_first);
        assert_eq!(shared_store.calls_to("settle"), charged);
        assert_eq!(used(&shared).await, charged as u64);
    }
}

#[tokio::test]
async fn a_refund_that_waits_goes_on_after_its_request_was_dropped() {
    // Decides without waiting, and waits to settle: like a cache or a fallback in front of a network.
    let (store, limiter) = remote("limit", POLICY);
    store.decide_immediately(true);
    let rule = shared(&limiter).refund_abandoned().unwrap();
    let app = serve([rule], std::future::pending::<()>);
    assert!(get(&app).now_or_never().is_none());
    assert_eq!(used(&limiter).await, 1);
    eventually(async || used(&limiter).await == 0).await;
}
