//! A cluster that changes: slots that move, masters that hang. limiter-wrappers' `faults` loses a master under load.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::request::AllOf;
use limiter_core::store::{JointOp, LogKey, Op};
use limiter_core::{Limiter, SharedStore, WindowStore, policy};
use limiter_redis::RedisStore;
use testbed::server::{Cluster, Server};

use crate::access::{allow, as_user, rules};
use crate::support::{
    TIMEOUT, assert_temporary, builder, connect, is_redis_6, search, send, until, within,
};

/// How long an operation may take with the default timeouts: two attempts of 250 ms and the pauses; and some time for the
/// runtime.
const BOUND: Duration = Duration::from_millis(540 + 250);

/// The slot of a key of the limiter `search`. The hash tag is the name and the key.
pub(crate) fn slot(cluster: &Cluster, key: &str) -> u16 {
    slot_of(cluster, &format!("search:{key}"))
}

pub(crate) fn slot_of(cluster: &Cluster, tag: &str) -> u16 {
    cluster.nodes()[0]
        .command(&["CLUSTER", "KEYSLOT", tag])
        .unwrap()
}

fn id(node: &Server) -> String {
    node.command(&["CLUSTER", "MYID"]).unwrap()
}

/// The node that owns a slot, and the number of another.
pub(crate) fn owner_and_other(cluster: &Cluster, slot: u16) -> (&Server, usize) {
    let owner = cluster.owner(slot).unwrap();
    let is_other = |node: &Server| node.port() != owner.port();
    (owner, cluster.nodes().iter().position(is_other).unwrap())
}

/// Begins to move a slot: the node that imports it answers for keys that the other one does not hold.
pub(crate) fn begin_migration(from: &Server, to: &Server, slot: u16) {
    for (node, state, id) in [(to, "IMPORTING", id(from)), (from, "MIGRATING", id(to))] {
        send(node, &format!("CLUSTER SETSLOT {slot} {state} {id}"));
    }
}

/// Returns `true` if a node has replied with this error.
fn replied(node: &Server, error: &str) -> bool {
    node.info("errorstats")
        .unwrap()
        .contains(&format!("errorstat_{error}:"))
}

/// With `cluster-preferred-endpoint-type unknown-endpoint`, of Redis 7, a redirection contains a port and no host.
#[tokio::test]
async fn a_redirection_without_a_host_points_to_the_host_that_answered() {
    let cluster = Cluster::start().unwrap();
    for node in cluster.nodes() {
        let option = "cluster-preferred-endpoint-type";
        let reply = node.command::<()>(&["CONFIG", "SET", option, "unknown-endpoint"]);
        assert!(reply.is_ok() || is_redis_6(node), "{reply:?}");
    }
    let limiter = search(policy!("5/1h"), connect(&cluster.url()).await);
    let moving = slot(&cluster, "key");
    let (from, to) = owner_and_other(&cluster, moving);
    assert!(limiter.acquire("warm").await.unwrap().is_allowed());
    begin_migration(from, &cluster.nodes()[to], moving);
    let used = async || {
        within(TIMEOUT, limiter.acquire("key"))
            .await
            .unwrap()
            .used()
    };
    assert_eq!([used().await, used().await], [1, 2], "after ASK");
    cluster.migrate(moving, to).unwrap();
    assert_eq!(used().await, 3, "after MOVED");
}

/// Calls with several keys are redirected as a whole. While their slot is on two nodes, they go one by one. The documented rules for a
/// Cluster suffice for that.
#[tokio::test]
async fn calls_with_several_keys_follow_a_slot_that_moves() {
    let cluster = Cluster::start().unwrap();
    for node in cluster.nodes() {
        allow(
            node,
            "shop",
            &format!("on >secret {} {}", rules()[0], rules()[2]),
        );
    }
    let tagged = builder().hash_tag(|_| b"tenant");
    let url = as_user(&cluster.url(), "shop");
    let store: SharedStore = Arc::new(tagged.connect(&url).await.unwrap());
    let limiter = search(policy!("9/1h"), store);
    let moving = slot_of(&cluster, "tenant");
    let (from, to) = owner_and_other(&cluster, moving);
    let port = cluster.nodes()[to].port();
    let move_key = |key: &str| {
        let stored = format!("limiter:1:{{tenant}}search:{key}");
        send(from, &format!("MIGRATE 127.0.0.1 {port} {stored} 0 5000"));
    };
    let policy = limiter.policy();
    for (used, (state, joint)) in (1..).zip([
        ("all here", true),
        ("TRYAGAIN", false),
        ("ASK", true),
        ("MOVED", true),
        ("all there", true),
    ]) {
        match state {
            "TRYAGAIN" => {
                begin_migration(from, &cluster.nodes()[to], moving);
                move_key("a");
            }
            "ASK" => move_key("b"),
            "MOVED" => cluster.migrate(moving, to).unwrap(),
            _ => {}
        }
        let op = |key| JointOp::from(Op::acquire(key, policy).with_name(limiter.name()));
        let facts = limiter
            .store()
            .apply_all(&["a", "b"].map(op))
            .await
            .unwrap();
        assert_eq!(facts.is_some(), joint, "{state}");
        let seen = cluster.nodes().iter().any(|node| replied(node, state));
        assert!(seen || state.starts_with("all"), "{state}");
        if !joint {
            let all = AllOf::new()
                .with(limiter.acquire("a"))
                .with(limiter.acquire("b"));
            let all = within(TIMEOUT, all.into_future()).await.unwrap();
            assert!(!all.is_denied(), "{state}");
        }
        for key in ["a", "b"] {
            assert_eq!(
                limiter.status(key).await.unwrap().used(),
                used,
                "{state}, {key}"
            );
        }
    }
}

/// Connects a store on a runtime that ends.
async fn connect_and_end(url: String) -> RedisStore {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(RedisStore::connect(&url)).unwrap()
    });
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap()
}

/// A master that hangs keeps its connections open. The store must ask other nodes all the same, and wherever it was connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_taken_over_from_a_hanging_master_is_found() {
    let cluster = Cluster::start().unwrap();
    let stores = [
        RedisStore::connect(&cluster.url()).await.unwrap(),
        connect_and_end(cluster.url()).await,
    ];
    let [limiter, orphan] = stores.map(|store| search(policy!("100/1m"), store));
    let lost = slot(&cluster, "key");
    let owner = cluster.owner(lost).unwrap();
    let is_other = |node: &&Server| node.port() != owner.port();
    let others: Vec<&Server> = cluster.nodes().iter().filter(is_other).collect();
    let is_at = |limiter: &Limiter<RedisStore>, node: &Server| {
        let found = limiter.store().node(LogKey::new(limiter.name(), "key"));
        assert_eq!(found, Some(format!("127.0.0.1:{}", node.port()).into()));
    };
    is_at(&limiter, owner);
    for limiter in [&limiter, &orphan] {
        until("it serves", async || limiter.acquire("key").await.is_ok()).await;
    }

    owner.pause().unwrap();
    let heir = id(others[0]);
    for node in &others {
        send(node, &format!("CLUSTER SETSLOT {lost} NODE {heir}"));
    }
    for (limiter, used) in [(&limiter, 1), (&orphan, 2)] {
        let decision = within(TIMEOUT, async {
            loop {
                match within(BOUND, limiter.acquire("key").into_future()).await {
                    Ok(decision) => break decision,
                    Err(error) => assert_temporary(&error),
                }
            }
        });
        assert_eq!(
            decision.await.used(),
            used,
            "the log was lost with the master"
        );
        is_at(limiter, others[0]);
    }
}
