//! Charges of requests whose client or whose store went away before the decision.

use std::time::Duration;

use axum::Router;
use limiter_core::{Limiter, Policy, policy};
use limiter_tower::key::Constant;
use limiter_tower::{LimitLayer, Rule};

use crate::common::{CLOSED, Does, REJECT, Server, eventually, get, hello, remote, store};

const POLICY: Policy = policy!("1000/1h");

fn limited(limiters: [&Limiter; 2]) -> Router {
    let rules = limiters.map(|limiter| Rule::new(limiter.clone(), Constant::new("all"), REJECT));
    hello(LimitLayer::new(rules, CLOSED))
}

async fn used(limiter: &Limiter) -> u64 {
    limiter.status("all").await.unwrap().used()
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

#[tokio::test]
async fn a_client_that_resets_its_streams_uses_up_no_shared_rule() {
    const STREAMS: usize = 200;
    let (shared_store, shared) = remote("limit", POLICY);
    let own = Limiter::new("own", policy!("1/1h"), store().0);
    assert!(own.acquire("all").await.unwrap().allowed());
    let server = Server::start_http2(limited([&shared, &own])).await;
    shared_store.rule(|verb, _| if verb == "settle" { Does::Hold } else { Does::Answer });
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..STREAMS {
        let server = server.clone();
        requests.spawn(async move { server.get().await });
    }
    eventually(async || shared_store.calls_to("settle") == STREAMS).await;
    requests.shutdown().await;
    // Each refund was dropped half-way, and is asked for again.
    eventually(async || shared_store.calls_to("settle") == 2 * STREAMS).await;
    shared_store.set(Does::Answer);
    eventually(async || used(&shared).await == 0).await;
}
