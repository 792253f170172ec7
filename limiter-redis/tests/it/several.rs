//! Several operations in one call of a script: what is particular to Redis. The conformance suite tests what they decide.

use std::sync::Arc;

use limiter_core::request::AllOf;
use limiter_core::store::{Facts, JointOp, Op};
use limiter_core::{ErrorKind, Limiter, Policy, SharedStore, WindowStore, policy};
use testbed::server::{Cluster, Server};

use crate::support::{builder, calls, connect, run, send};

const RULES: usize = 5;

fn keys(prefix: &str) -> Vec<String> {
    (0..RULES).map(|rule| format!("{prefix} {rule}")).collect()
}

fn acquires<'a>(keys: &'a [String], policy: &'a Policy) -> Vec<JointOp<'a>> {
    let acquire = |key| Op::acquire(key, policy).into();
    keys.iter().map(acquire).collect()
}

fn all_of<'a>(limiter: &'a Limiter, keys: &'a [String]) -> AllOf<'a> {
    let add = |all: AllOf<'a>, key| all.with(limiter.acquire(key));
    keys.iter().fold(AllOf::new(), add)
}

/// Applies operations that all succeed.
async fn apply_all(store: &impl WindowStore, ops: &[JointOp<'_>]) -> Vec<Facts> {
    let facts = store.apply_all(ops).await.unwrap().unwrap();
    facts.into_iter().map(Result::unwrap).collect()
}

async fn used(store: &impl WindowStore, key: &str) -> u64 {
    let peek = run(store, Op::peek(key, &policy!("1000/1h"))).await;
    peek.unwrap().used()
}

#[tokio::test]
async fn a_full_server_refuses_all_or_none() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policy = policy!("9/1h");
    let keys = keys("k");
    apply_all(&store, &acquires(&keys[..1], &policy)).await;
    send(&server, "CONFIG SET maxmemory 1");
    let error = store.apply_all(&acquires(&keys, &policy)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    send(&server, "CONFIG SET maxmemory 0");
    assert_eq!(used(&store, &keys[0]).await, 1);
    assert_eq!(used(&store, &keys[1]).await, 0);
}

/// One script applies any number of operations.
#[tokio::test]
async fn hundreds_of_logs_change_together() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policy = policy!("1/1h");
    let keys: Vec<String> = (0..300).map(|rule| format!("rule {rule}")).collect();
    // The last log is new in the second call, and all others deny.
    for end in [299, 300] {
        assert_eq!(
            apply_all(&store, &acquires(&keys[..end], &policy))
                .await
                .len(),
            end
        );
        assert_eq!(used(&store, &keys[298]).await, 1);
    }
    assert_eq!(used(&store, &keys[299]).await, 0, "all or none");
}

#[tokio::test]
async fn logs_of_one_slot_go_together_in_a_cluster_and_others_one_by_one() {
    // Its own, because it counts the calls of all clients.
    let cluster = Cluster::start().unwrap();
    let tagged = builder().hash_tag(|key| key.split(|byte| *byte == b',').next().unwrap_or(key));
    let tagged: SharedStore = Arc::new(tagged.connect(&cluster.url()).await.unwrap());
    let plain: SharedStore = Arc::new(connect(&cluster.url()).await);
    let scripts = |node| calls(node).get("evalsha").copied().unwrap_or(0);
    let total = || cluster.nodes().iter().map(scripts).sum::<u64>();
    for (is_tagged, store) in [(true, tagged), (false, plain.clone())] {
        let limiter = Limiter::new("tenants", policy!("2/1h"), store);
        let keys: Vec<_> = (0..RULES)
            .map(|rule| format!("tenant {is_tagged},{rule}"))
            .collect();
        let all = async || all_of(&limiter, &keys).await.unwrap().is_denied();
        assert!(!all().await);
        let before = total();
        assert_eq!([all().await, all().await], [false, true]);
        let taken = total() - before;
        assert_eq!(taken == 2, is_tagged, "{taken} calls");
        for key in &keys {
            assert_eq!(limiter.status(key).await.unwrap().used(), 2);
        }
    }
    let policy = policy!("9/1h");
    let keys = keys("far apart");
    let facts = plain.apply_all(&acquires(&keys, &policy)).await.unwrap();
    assert!(facts.is_none(), "CROSSSLOT");
    assert_eq!(used(&plain, &keys[0]).await, 0);
}
