//! Who may do what, over which connection, under which keys.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{ErrorKind, Limit, Limiter, Op, Timestamp, WindowStore};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::server::{Cluster, Server};

/// What a Redis user needs for a store of the prefix `limiter`, as the documentation lists it.
const RULES: [&str; 15] = [
    "on",
    ">secret",
    "~limiter:{*}",
    "+evalsha",
    "+eval",
    "+time",
    "+zadd",
    "+zrange",
    "+zrangebylex",
    "+zremrangebylex",
    "+zremrangebyrank",
    "+zrevrangebylex",
    "+pexpire",
    "+pexpireat",
    "+unlink",
];
/// What counting attempts, records, ids, refunds and settlements need besides.
const MORE: [&str; 5] = ["+pttl", "+zcard", "+zlexcount", "+zrank", "+zrem"];
/// What looking at live keys needs besides.
const LOOK: [&str; 2] = ["+scan", "+memory|usage"];

fn builder() -> RedisStoreBuilder {
    RedisStore::builder().response_timeout(Duration::from_secs(10)).connect_timeout(Duration::from_secs(10))
}

fn allow(server: &Server, rules: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", "shop"];
    command.extend_from_slice(rules);
    assert_eq!(server.command(&command).unwrap().text(), "OK");
}

fn as_user(url: &str) -> String {
    url.replace("://", "://shop:secret@")
}

#[tokio::test]
async fn a_user_with_the_documented_rules_can_do_everything() {
    let server = Server::start().unwrap();
    allow(&server, &RULES);
    let store = Arc::new(builder().connect(&as_user(&server.url())).await.unwrap());
    let limiter = Limiter::new(store.clone(), Limit::per_hour(3).unwrap());
    for allowed in [true, true, true, false] {
        assert_eq!(limiter.acquire("k").await.unwrap().allowed(), allowed);
    }
    assert_eq!(limiter.peek("k").await.unwrap().used(), 3);
    assert!(limiter.reset("k").await.unwrap());

    allow(&server, &MORE);
    let attempts = limiter.policy().clone().counting(limiter_core::Counting::Attempts);
    for id in 0..6_u128 {
        for _ in 0..2 {
            assert_eq!(limiter.run(Op::acquire("k", &attempts).id(id)).await.unwrap().allowed(), id < 3);
        }
    }
    let receipt = limiter.record("metered", 5).await.unwrap().receipt().unwrap();
    assert!(limiter.settle("metered", receipt, 2).await.unwrap());
    assert_eq!(limiter.peek("metered").await.unwrap().used(), 2);
    assert!(limiter.refund("metered", receipt).await.unwrap());

    allow(&server, &LOOK);
    assert_eq!(store.inspect("k").await.unwrap().unwrap().entries, 3);
    let page = store.scan(None, 1000).await.unwrap();
    assert_eq!((page.keys.len(), page.next.is_none()), (1, true));
}

#[tokio::test]
async fn a_missing_permission_or_a_wrong_password_is_a_configuration_error() {
    let server = Server::start().unwrap();
    allow(&server, &RULES);
    let limit = Limit::per_hour(3).unwrap();
    let elsewhere = builder().prefix("elsewhere").connect(&as_user(&server.url())).await.unwrap();
    let error = Limiter::new(elsewhere, limit).acquire("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");

    allow(&server, &["-zadd"]);
    let store = builder().connect(&as_user(&server.url())).await.unwrap();
    let error = Limiter::new(store, limit).acquire("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");

    let wrong = server.url().replace("://", "://shop:guess@");
    let error = builder().connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(!error.to_string().contains("guess"), "{error}");
}

#[tokio::test]
async fn stores_of_different_prefixes_share_nothing_and_those_of_one_share_all() {
    let server = Server::start().unwrap();
    let limit = Limit::per_hour(1).unwrap();
    let one = Limiter::new(builder().prefix("a").connect(&server.url()).await.unwrap(), limit);
    let same = Limiter::new(builder().prefix("a").connect(&server.url()).await.unwrap(), limit);
    let other = Limiter::new(builder().prefix("a:b").connect(&server.url()).await.unwrap(), limit);
    assert!(one.acquire("k").await.unwrap().allowed());
    assert!(!same.acquire("k").await.unwrap().allowed());
    assert!(other.acquire("k").await.unwrap().allowed());
    assert!(one.acquire(":b:{k").await.unwrap().allowed());
    assert!(!other.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let server = Server::start().unwrap();
    let url = format!("redis+unix://{}", server.socket().display());
    let limiter = Limiter::new(builder().connect(&url).await.unwrap(), Limit::per_hour(1).unwrap());
    assert!(limiter.acquire("k").await.unwrap().allowed());
    assert!(!limiter.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn a_connection_of_the_users_own_will_do() {
    let server = Server::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let limiter = Limiter::new(builder().with_connection(connection).unwrap(), Limit::per_hour(1).unwrap());
    assert!(limiter.acquire("k").await.unwrap().allowed());
    assert!(!limiter.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn a_cluster_connection_of_the_users_own_will_do() {
    let cluster = Cluster::start().unwrap();
    let nodes = cluster.nodes().iter().map(Server::url);
    let client = redis::cluster::ClusterClientBuilder::new(nodes).retries(0).build().unwrap();
    let connection = limiter_redis::Connection::from(client.get_async_connection().await.unwrap());
    let limiter = Limiter::new(builder().with_connection(connection).unwrap(), Limit::per_hour(1).unwrap());
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert!(limiter.acquire(key).await.unwrap().allowed());
        assert!(!limiter.acquire(key).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn a_store_starts_while_redis_is_away() {
    let mut server = Server::start().unwrap();
    server.kill();
    let store = RedisStore::builder().connect_lazily(&server.url()).unwrap();
    let limiter = Limiter::new(store, Limit::per_hour(1).unwrap());
    assert!(limiter.acquire("k").await.unwrap_err().is_retryable());
    server.restart().unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while limiter.acquire("k").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "no recovery");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(limiter.peek("k").await.unwrap().used(), 1);
}

#[tokio::test]
async fn a_given_time_keeps_its_log_for_a_minute_more_than_the_window() {
    let server = Server::start().unwrap();
    let store = builder().connect(&server.url()).await.unwrap();
    let second = limiter_core::Policy::from(Limit::per_second(1).unwrap());
    let op = Op::acquire("k", &second);
    let ttl = |key: &str| server.command(&[b"PTTL".as_slice(), &store.redis_key(key)]).unwrap().int();
    store.apply(op.at(Timestamp::from_micros(5_000_000).unwrap())).await.unwrap();
    assert!((58_000..=61_000).contains(&ttl("k")), "{}", ttl("k"));
    store.apply(Op::acquire("now", &second)).await.unwrap();
    assert!((1..=1_126).contains(&ttl("now")), "an eighth more at most: {}", ttl("now"));
}
