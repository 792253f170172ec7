//! When a connection is replaced, and when it is not. The address of a service leads to another server, and the old one still
//! replies, refuses or is silent.

use std::time::Duration;

use futures::future::join_all;
use limiter_core::policy;
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::poll_times;
use testbed::server::Server;
use testbed::{Network, Proxy};
use tokio::time::{sleep, timeout};

use crate::support::{TIMEOUT, connect, is_redis_6, search, send, until};

/// The address of a service, as a DNS name or a load balancer provides it.
fn service(server: &Server) -> Proxy {
    Proxy::start(([127, 0, 0, 1], server.port()).into()).unwrap()
}

fn url(service: &Proxy) -> String {
    format!("redis://{}", service.address())
}

/// Short timeouts, and no retry that would hide an error.
fn builder() -> RedisStoreBuilder {
    RedisStore::builder()
        .connect_timeout(TIMEOUT)
        .response_timeout(Duration::from_millis(100))
        .retries(0)
}

fn connections(server: &Server) -> u64 {
    let received = server.info_number("stats", "total_connections_received");
    received.unwrap()
}

/// What an old master does once the service leads to the new one, and the commands that make it do so.
const OLD_MASTERS: [(&str, &[&str]); 4] = [
    ("is a replica", &[REPLICA]),
    (
        "is a replica that serves no stale data",
        &["CONFIG SET replica-serve-stale-data no", REPLICA],
    ),
    (
        "has lost its replicas",
        &["CONFIG SET min-replicas-to-write 1"],
    ),
    ("accepts bytes and never replies", &[]),
];
const REPLICA: &str = "REPLICAOF 127.0.0.1 1";

/// Callers wait until the store gives up, or give up themselves.
#[tokio::test]
async fn a_store_leaves_a_former_master() {
    let leaves = async |name: &str, commands: &[&str], patience: Duration| {
        let old = Server::start().unwrap();
        let new = Server::start().unwrap();
        let service = service(&old);
        let store = builder().connect(&url(&service)).await.unwrap();
        let limiter = search(policy!("9/1h"), store);
        until("a decision", async || limiter.acquire("k").await.is_ok()).await;
        for command in commands {
            send(&old, command);
        }
        if name == "has lost its replicas" && is_redis_6(&old) {
            // It does not apply the setting to scripts.
            assert!(limiter.acquire("k").await.unwrap().is_allowed());
            return;
        }
        if commands.is_empty() {
            old.pause().unwrap();
        }
        service.redirect(([127, 0, 0, 1], new.port()).into());
        until(name, async || {
            let decision = timeout(patience, limiter.acquire("k").into_future()).await;
            decision.is_ok_and(|decision| decision.is_ok())
        })
        .await;
        assert_eq!(new.command::<i64>(&["DBSIZE"]).unwrap(), 1, "{name}");
        // A busy machine may be later than a call waits.
        until(name, async || limiter.acquire("k").await.is_ok()).await;
    };
    let cases = OLD_MASTERS.into_iter().flat_map(|(name, depose)| {
        let leaves = &leaves;
        [20, 1_000].map(|patience| leaves(name, depose, Duration::from_millis(patience)))
    });
    join_all(cases).await;
}

/// A server that serves is asked over the same connection: if it is slow, if callers give up, if it refuses some commands.
#[tokio::test]
async fn a_store_keeps_a_connection_that_replies() {
    let server = Server::start().unwrap();
    let service = service(&server);
    let patient = builder().response_timeout(TIMEOUT);
    let store = patient.connect(&url(&service)).await.unwrap();
    let limiter = search(policy!("999/1h"), store);
    assert!(limiter.acquire("k").await.unwrap().is_allowed());
    let direct = connect(&server.url()).await;
    let before = connections(&server);
    drop(direct);
    service.set(Network::Latency(Duration::from_millis(70)));
    for _ in 0..5 {
        assert!(limiter.acquire("k").await.unwrap().is_allowed());
    }
    service.set(Network::Healthy);
    for _ in 0..50 {
        let mut dropped = Box::pin(limiter.acquire("k").into_future());
        assert!(poll_times(1, &mut dropped).await.is_none());
    }
    assert!(limiter.acquire("k").await.unwrap().is_allowed());
    send(&server, "CONFIG SET maxmemory 1");
    assert!(limiter.acquire("new").await.is_err());
    // Each count is also a connection, and so are the two commands.
    assert_eq!(connections(&server) - before, 2);
}

/// A demoted master whose address still leads to it is asked ten times a second at most.
#[tokio::test]
async fn a_store_does_not_reconnect_with_each_call() {
    let server = Server::start().unwrap();
    let patient = builder().response_timeout(TIMEOUT);
    let store = patient.connect(&server.url()).await.unwrap();
    let limiter = search(policy!("9/1h"), store);
    send(&server, REPLICA);
    let before = connections(&server);
    let begun = tokio::time::Instant::now();
    for _ in 0..300 {
        assert!(limiter.acquire("k").await.is_err());
    }
    let most = 2 + begun.elapsed().as_millis() as u64 / 100;
    let opened = connections(&server) - before;
    assert!((1..=most).contains(&opened), "{opened} of {most}");
}

/// The call after an outage does not report the outage's errors.
#[tokio::test]
async fn a_thousand_calls_after_a_restart_share_one_connection() {
    let mut server = Server::start().unwrap();
    let patient = builder().response_timeout(TIMEOUT);
    let store = patient.connect(&server.url()).await.unwrap();
    let limiter = &search(policy!("9999/1h"), store);
    for _ in 0..3 {
        server.kill();
        until("the loss", async || limiter.acquire("k").await.is_err()).await;
        server.restart().unwrap();
        let before = connections(&server);
        sleep(Duration::from_millis(1)).await;
        let calls = (0..1_000).map(|_| limiter.acquire("k").into_future());
        for decision in join_all(calls).await {
            assert!(decision.unwrap().is_allowed());
        }
        assert_eq!(connections(&server) - before, 2, "one is the count's");
    }
}
