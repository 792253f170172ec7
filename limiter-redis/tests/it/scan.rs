//! A scan takes one round trip a page, and finds every key on every node.

use std::collections::BTreeSet;

use limiter_core::store::{LogKey, Op};
use limiter_core::{Limiter, Name, WindowStore, policy};
use limiter_redis::{LiveKey, RedisStore, StoredKey};
use testbed::server::{Cluster, Server};

use crate::cluster::{begin_migration, owner_and_other, slot};
use crate::support::{builder, connect, run, search, send, shared_cluster};

const KEYS: u64 = 700;

async fn fill(store: RedisStore) -> Limiter<RedisStore> {
    let limiter = search(policy!("10/1h"), store);
    for n in 0..KEYS {
        assert!(limiter.acquire(n).await.unwrap().is_allowed());
    }
    limiter
}

fn expected() -> BTreeSet<String> {
    (0..KEYS).map(|n| n.to_string()).collect()
}

/// Scans the keys of one name or of all, page by page.
pub(crate) async fn scanned(store: &RedisStore, name: Option<Name>, count: usize) -> Vec<LiveKey> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.scan(name, cursor, count).await.unwrap();
        found.extend(page.keys);
        cursor = page.next;
        if cursor.is_none() {
            return found;
        }
    }
}

fn keys(found: &[LiveKey]) -> BTreeSet<String> {
    found.iter().map(|live| live.key.to_string()).collect()
}

/// How often the server found something to read. That is at least once for each round trip.
fn reads(server: &Server) -> u64 {
    server
        .info_number("stats", "total_reads_processed")
        .unwrap()
}

#[tokio::test]
async fn a_page_takes_one_round_trip_and_lists_other_types_too() {
    let server = Server::start().unwrap();
    let limiter = fill(connect(&server.url()).await).await;
    let before = reads(&server);
    // A page of all keys comes in Redis' order.
    let page = limiter.store().scan(None, None, 1_000_000).await.unwrap();
    assert!(page.next.is_none());
    let trips = reads(&server) - before;
    assert!(trips < 10, "{trips} reads for {KEYS} keys");
    assert_eq!(page.keys.len() as u64, KEYS);
    assert_eq!(keys(&page.keys), expected());
    assert_eq!(keys(&scanned(limiter.store(), None, 10).await), expected());

    send(&server, "SET limiter:1:{search:text} log");
    assert!(limiter.reset("5").await.unwrap());
    let mut expected = expected();
    let found = scanned(limiter.store(), None, 100).await;
    assert!(expected.remove("5"));
    expected.insert("text".to_owned());
    assert_eq!(keys(&found), expected);
}

#[tokio::test]
async fn a_cluster_is_looked_through_node_by_node_and_keys_that_move_are_followed() {
    let cluster = Cluster::start().unwrap();
    let limiter = fill(connect(&cluster.url()).await).await;
    assert_eq!(keys(&scanned(limiter.store(), None, 100).await), expected());

    // One key of a migrating slot is already on its new node, and is found there.
    let slot = slot(&cluster, "7");
    let (from, to) = owner_and_other(&cluster, slot);
    let to = &cluster.nodes()[to];
    begin_migration(from, to, slot);
    let migrate = format!(
        "MIGRATE 127.0.0.1 {} limiter:1:{{search:7}} 0 5000",
        to.port()
    );
    send(from, &migrate);
    assert_eq!(keys(&scanned(limiter.store(), None, 100).await), expected());
    assert_eq!(limiter.status("7").await.unwrap().used(), 1);
}

const NAMES: [&str; 8] = ["search", "login", "Search", "", "a:b", "*", "{a}", "%2A"];

/// Every name gets the same keys.
const SAME_KEYS: [&str; 4] = ["", "customer 7", "search:customer 7", "}"];

/// Checks that each of these names, and no other, has all keys.
#[track_caller]
fn assert_names(found: &[LiveKey], names: &[&str]) {
    let name_and_key = |live: &LiveKey| (live.name.clone(), live.key.to_string());
    let of_name = |name: &&str| SAME_KEYS.map(|key| ((*name).to_owned(), key.to_owned()));
    let found: BTreeSet<_> = found.iter().map(name_and_key).collect();
    assert_eq!(found, names.iter().flat_map(of_name).collect());
}

async fn each_name_is_scanned_alone(store: &RedisStore) {
    let policy = policy!("10/1h");
    for name in NAMES {
        for key in SAME_KEYS {
            let op = Op::acquire(key, &policy).with_name(Name::new(name));
            assert!(run(store, op).await.unwrap().is_allowed());
        }
    }
    let all = scanned(store, None, 3).await;
    assert_eq!(all.len(), NAMES.len() * SAME_KEYS.len());
    assert_names(&all, &NAMES);
    for name in NAMES {
        assert_names(&scanned(store, Some(Name::new(name)), 3).await, &[name]);
    }
    for name in ["sear", "search:", "nobody", "[a-z]*", "?"] {
        let found = scanned(store, Some(Name::new(name)), 100).await;
        assert!(found.is_empty(), "{name:?}");
    }
    let debugged = format!("{:?}", scanned(store, Some(Name::new("login")), 100).await);
    assert!(debugged.contains("login") && !debugged.contains("customer"));

    // The keys found can be inspected and removed.
    for live in &all {
        let StoredKey::Known(key) = &live.key else {
            panic!("{live:?}")
        };
        let log = LogKey::new(Name::new(&live.name), &**key);
        assert_eq!(store.inspect(log).await.unwrap().unwrap().entries, 1);
        assert!(store.reset(log).await.unwrap());
    }
    assert!(scanned(store, None, 100).await.is_empty());
}

#[tokio::test]
async fn the_keys_of_one_name_are_scanned_alone_and_keys_of_another_layout_not_at_all() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    for other in [
        "limiter:1:{no_name}",
        "limiter:search:k",
        "limiter:1:{%73earch:k}",
        "other:{search:k}",
    ] {
        send(&server, &format!("SET {other} text"));
    }
    server
        .command::<()>(&["SET", "limiter:1:{a b:k}", "text"])
        .unwrap();
    each_name_is_scanned_alone(&store).await;
    let of_cluster = builder().prefix("scan");
    let url = shared_cluster().url();
    each_name_is_scanned_alone(&of_cluster.connect(&url).await.unwrap()).await;

    let limiter = search(policy!("10/1h"), store);
    assert!(limiter.acquire("k".repeat(257)).await.unwrap().is_allowed());
    let found = scanned(limiter.store(), Some(limiter.name()), 100).await;
    assert!(
        matches!(&found[..], [LiveKey { key: StoredKey::Digest(hex), .. }] if hex.len() == 64),
        "{found:?}"
    );
}
