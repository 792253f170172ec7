//! A server that deletes logs when its memory runs short is noticed at each connection, and costs no call.

use limiter_core::policy;
use limiter_redis::RedisStore;
use testbed::server::{Cluster, Server};

use crate::access::{allow, as_user, rules};
use crate::support::{connect, search, send, until};

fn policies(store: &RedisStore) -> Vec<String> {
    let evicting = store.evicting().into_iter();
    evicting.map(|(_, policy)| policy.to_string()).collect()
}

#[tokio::test]
async fn each_connection_reads_whether_the_server_evicts() {
    let server = Server::start().unwrap();
    let limiter = search(policy!("9/1h"), connect(&server.url()).await);
    for (policy, expected) in [
        ("allkeys-lru", vec!["allkeys-lru"]),
        ("noeviction", vec![]),
        // All logs have a time to live.
        ("volatile-ttl", vec!["volatile-ttl"]),
    ] {
        send(&server, &format!("CONFIG SET maxmemory-policy {policy}"));
        send(&server, "CLIENT KILL TYPE normal");
        assert!(limiter.acquire("k").await.unwrap().is_allowed());
        until(policy, async || policies(limiter.store()) == expected).await;
    }
    let [(name, _)] = &limiter.store().evicting()[..] else {
        panic!("one server")
    };
    assert_eq!(name, &format!("127.0.0.1:{}", server.port()));
}

#[tokio::test]
async fn a_user_without_the_permission_learns_nothing() {
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lru"]).unwrap();
    let [basic, .., info] = rules();
    allow(&server, "shop", &format!("on >secret {basic}"));
    let url = as_user(&server.url(), "shop");
    let limiter = search(policy!("9/1h"), connect(&url).await);
    let refused = || {
        !server
            .command::<Vec<redis::Value>>(&["ACL", "LOG"])
            .unwrap()
            .is_empty()
    };
    until("the server refuses", async || refused()).await;
    assert!(limiter.acquire("k").await.unwrap().is_allowed());
    assert!(policies(limiter.store()).is_empty());
    allow(&server, "shop", info);
    let store = connect(&url).await;
    until("it is read", async || policies(&store) == ["allkeys-lru"]).await;
}

#[tokio::test]
async fn each_node_of_a_cluster_is_read() {
    let cluster = Cluster::start().unwrap();
    let node = &cluster.nodes()[1];
    send(node, "CONFIG SET maxmemory-policy allkeys-lfu");
    let store = connect(&cluster.url()).await;
    let expected = format!("127.0.0.1:{}", node.port());
    let is_listed = || store.evicting() == [(expected.clone(), "allkeys-lfu".into())];
    until("the node is listed", async || is_listed()).await;
}
