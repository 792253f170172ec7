//! Charges of requests whose client or whose store went away before the decision.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get as on_get;
use limiter_core::{Limiter, policy};
use limiter_tower::key::Constant;
use limiter_tower::{LimitLayer, Rule};

use crate::common::{CLOSED, REJECT, Server, eventually, get, store};
use crate::remote::{Mood, Remote};

/// A limiter over a store that needs a future.
fn remote() -> (Remote, Limiter) {
    let store = Remote::new(store().0);
    (store.clone(), Limiter::new("limit", policy!("1000/1h"), Arc::new(store)))
}

fn limited(limiters: [&Limiter; 2]) -> Router {
    let rules = limiters.map(|limiter| Rule::new(limiter.clone(), Constant::new("all"), REJECT));
    Router::new().route("/", on_get(|| async {})).layer(LimitLayer::new(rules, CLOSED))
}

async fn used(limiter: &Limiter) -> u64 {
    limiter.status("all").await.unwrap().used()
}

/// With a paused clock, a sleep ends when all tasks have done what they can.
#[tokio::test(start_paused = true)]
async fn charges_before_a_rule_that_hangs_are_refunded() {
    for mood in [Mood::Hanging, Mood::Silent] {
        let ((_, charged), (store, hanging)) = (remote(), remote());
        store.set(mood);
        let app = limited([&charged, &hanging]);
        for _ in 0..5 {
            assert_eq!(get(&app).await.status, 503);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(used(&charged).await, 0, "{mood:?}");
    }
}

#[tokio::test]
async fn a_client_that_resets_its_streams_uses_up_no_shared_rule() {
    const STREAMS: usize = 200;
    let (shared_store, shared) = remote();
    let own = Limiter::new("own", policy!("1/1h"), store().0);
    assert!(own.acquire("all").await.unwrap().allowed());
    let server = Server::start_http2(limited([&shared, &own])).await;
    shared_store.set(Mood::Unsettling);
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..STREAMS {
        let server = server.clone();
        requests.spawn(async move { server.get().await });
    }
    eventually(async || shared_store.settlements() == STREAMS).await;
    requests.shutdown().await;
    // Each refund was dropped half-way, and is asked for again.
    eventually(async || shared_store.settlements() == 2 * STREAMS).await;
    shared_store.set(Mood::Well);
    eventually(async || used(&shared).await == 0).await;
}
