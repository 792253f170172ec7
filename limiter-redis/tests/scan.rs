//! Looking through the keys takes a few round trips a page, and finds every key once, wherever it is.

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::{Limit, Limiter, Op};
use limiter_redis::{LiveKey, RedisStore, StoredKey};
use limiter_testkit::server::{Cluster, Server};

const KEYS: u64 = 700;

async fn store(url: &str) -> RedisStore {
    let patience = Duration::from_secs(10);
    RedisStore::builder().response_timeout(patience).connect_timeout(patience).connect(url).await.unwrap()
}

/// Key `n` gets one, two or three entries.
async fn fill(store: RedisStore) -> Limiter<RedisStore> {
    let limiter = Limiter::new(store, Limit::per_hour(10).unwrap());
    for n in 0..KEYS {
        for _ in 0..=n % 3 {
            assert!(limiter.acquire(&n.to_string()).await.unwrap().allowed());
        }
    }
    limiter
}

fn expected() -> BTreeMap<String, u64> {
    (0..KEYS).map(|n| (n.to_string(), n % 3 + 1)).collect()
}

/// All keys, page by page.
async fn scanned(store: &RedisStore, count: usize) -> Vec<LiveKey> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.scan(cursor, count).await.unwrap();
        found.extend(page.keys);
        cursor = page.next;
        if cursor.is_none() {
            return found;
        }
    }
}

fn sizes(found: &[LiveKey]) -> BTreeMap<String, u64> {
    let name = |live: &LiveKey| match &live.key {
        StoredKey::Known(key) => String::from_utf8(key.to_vec()).unwrap(),
        other => panic!("{other}"),
    };
    found.iter().map(|live| (name(live), live.members)).collect()
}

/// How many times the server waited for its clients and found something to read, at least as often as a round trip.
fn reads(server: &Server) -> u64 {
    server.info_number("stats", "total_reads_processed").unwrap()
}

#[tokio::test]
async fn a_page_takes_a_few_round_trips() {
    let server = Server::start().unwrap();
    let limiter = fill(store(&server.url()).await).await;
    let before = reads(&server);
    // A page of all keys comes in the order in which Redis names them.
    let page = limiter.store().scan(None, 1_000_000).await.unwrap();
    assert!(page.next.is_none());
    let trips = reads(&server) - before;
    assert!(trips < 40, "{trips} reads for {KEYS} keys");
    assert_eq!(page.keys.len() as u64, KEYS);
    assert_eq!(sizes(&page.keys), expected());
    assert_eq!(sizes(&scanned(limiter.store(), 10).await), expected());
}

#[tokio::test]
async fn keys_that_are_no_logs_are_listed_without_members_and_gone_ones_not_at_all() {
    let server = Server::start().unwrap();
    let limiter = fill(store(&server.url()).await).await;
    server.command(&[b"SET".as_slice(), &limiter.store().redis_key("text"), b"no log"]).unwrap();
    assert!(limiter.reset("5").await.unwrap());
    let (mut expected, found) = (expected(), scanned(limiter.store(), 100).await);
    expected.remove("5");
    expected.insert("text".to_owned(), 0);
    assert_eq!(sizes(&found), expected);
}

#[tokio::test]
async fn a_cluster_is_looked_through_node_by_node_and_keys_that_move_are_followed() {
    let cluster = Cluster::start().unwrap();
    let limiter = fill(store(&cluster.url()).await).await;
    assert_eq!(sizes(&scanned(limiter.store(), 100).await), expected());

    // A slot that is being moved: one key has gone ahead, and is asked for at its new place.
    let key = "7";
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", key]).unwrap().int();
    let from = cluster.owner(u16::try_from(slot).unwrap()).unwrap();
    let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
    let id = |node: &Server| node.command(&["CLUSTER", "MYID"]).unwrap().text();
    let number = slot.to_string();
    for (node, state, id) in [(to, "IMPORTING", id(from)), (from, "MIGRATING", id(to))] {
        assert_eq!(node.command(&["CLUSTER", "SETSLOT", &number, state, &id]).unwrap().text(), "OK");
    }
    let stored = limiter.store().redis_key(key);
    let port = to.port().to_string();
    let migrate = [b"MIGRATE".as_slice(), b"127.0.0.1", port.as_bytes(), &stored, b"0", b"5000"];
    assert_eq!(from.command(&migrate).unwrap().text(), "OK");
    assert_eq!(sizes(&scanned(limiter.store(), 100).await), expected());
    let decision = limiter.run(Op::peek(key, limiter.policy())).await.unwrap();
    assert_eq!(decision.used(), 2);
}
