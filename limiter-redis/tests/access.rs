//! Permissions, connections and Redis keys.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use limiter_core::IntoPolicy;
use limiter_core::store::{LogKey, Op};
use limiter_core::{Counting, ErrorKind, Limiter, Name, Timestamp, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::{Cluster, Server};

use common::{builder, connect};

mod common;

/// What a Redis user needs for a store with the prefix `limiter`, as the documentation lists it.
const BASIC_RULES: [&str; 15] = [
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
/// What counting attempts, records, ids, refunds, settlements and group commit need in addition.
const GENERAL_RULES: [&str; 5] = ["+pttl", "+zcard", "+zlexcount", "+zrank", "+zrem"];
/// What looking at live keys needs in addition.
const INSPECT_RULES: [&str; 2] = ["+scan", "+memory|usage"];

fn allow(server: &Server, user: &str, rules: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", user];
    command.extend_from_slice(rules);
    assert_eq!(server.command(&command).unwrap().text(), "OK");
}

fn as_user(url: &str, user: &str) -> String {
    url.replace("://", &format!("://{user}:secret@"))
}

fn search<S>(policy: impl IntoPolicy, store: S) -> Limiter<S> {
    Limiter::new("search", policy, store)
}

#[tokio::test]
async fn a_user_with_the_documented_rules_can_do_everything() {
    let server = Server::start().unwrap();
    allow(&server, "shop", &BASIC_RULES);
    let store = Arc::new(connect(&as_user(&server.url(), "shop")).await);
    let limiter = search(policy!("3/1h"), store.clone());
    for allowed in [true, true, true, false] {
        assert_eq!(limiter.acquire("k").await.unwrap().allowed(), allowed);
    }
    assert_eq!(limiter.peek("k").await.unwrap().used(), 3);
    assert!(limiter.reset("k").await.unwrap());

    allow(&server, "shop", &GENERAL_RULES);
    let attempts = limiter.policy().clone().with_counting(Counting::Attempts);
    for id in 0..6_u128 {
        for _ in 0..2 {
            let decision = limiter.acquire("k").policy(&attempts).id(id).await.unwrap();
            assert_eq!(decision.allowed(), id < 3);
        }
    }
    let grouping = builder().group_commit(true).connect(&as_user(&server.url(), "shop")).await.unwrap();
    let grouping = search(policy!("150/1h"), grouping);
    let (gold, own) = (policy!("200/1ms"), grouping.policy().clone());
    for policy in [&gold, &own, &gold] {
        for decision in join_all((0..100).map(|_| grouping.acquire("many").policy(policy))).await {
            assert!(decision.is_ok(), "{decision:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(grouping.reset("many").await.unwrap());
    let receipt = limiter.record("metered").cost(5).await.unwrap().receipt().unwrap();
    assert!(limiter.settle("metered", receipt, 2).await.unwrap().applied());
    assert_eq!(limiter.status("metered").await.unwrap().used(), 2);
    assert!(limiter.refund("metered", receipt).await.unwrap().applied());
    // An operation under another policy, which takes the general form once it has something to drop.
    let gold = policy!("50/1ms");
    for _ in 0..150 {
        assert!(limiter.record("gold").policy(&gold).cost(7).await.unwrap().receipt().is_some());
    }

    allow(&server, "shop", &INSPECT_RULES);
    let log = LogKey::new(limiter.name(), "k");
    assert_eq!(store.inspect(log).await.unwrap().unwrap().entries, 3);
    let page = store.scan(None, 1000).await.unwrap();
    assert_eq!((page.keys.len(), page.next.is_none()), (2, true));
}

/// The name is part of the pattern: a user may be given the keys of one limiter alone.
#[tokio::test]
async fn a_user_for_one_limiter_reaches_no_other() {
    let server = Server::start().unwrap();
    let mut rules = BASIC_RULES;
    rules[2] = "~limiter:{search:*}";
    allow(&server, "searcher", &rules);
    let store = Arc::new(connect(&as_user(&server.url(), "searcher")).await);
    for key in ["customer 7", "", "}", "a:{b}"] {
        assert!(search(policy!("3/1h"), store.clone()).acquire(key).await.unwrap().allowed());
        for name in ["login", "", "search2", "search:", "Search", "*"] {
            let error = Limiter::new(name, policy!("3/1h"), store.clone()).acquire(key).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{name}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_missing_permission_or_a_wrong_password_is_a_configuration_error() {
    let server = Server::start().unwrap();
    allow(&server, "shop", &BASIC_RULES);
    let elsewhere = builder().prefix("elsewhere").connect(&as_user(&server.url(), "shop")).await.unwrap();
    let error = search(policy!("3/1h"), elsewhere).acquire("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");

    allow(&server, "shop", &["-zadd"]);
    let store = connect(&as_user(&server.url(), "shop")).await;
    let error = search(policy!("3/1h"), store).acquire("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");

    let wrong = server.url().replace("://", "://shop:guess@");
    let error = builder().connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(!format!("{error} {error:?}").contains("guess"), "{error:?}");
}

#[tokio::test]
async fn stores_of_different_prefixes_share_nothing_and_those_of_one_share_all() {
    let server = Server::start().unwrap();
    let with_prefix = async |prefix: &str| {
        let store = builder().prefix(prefix).connect(&server.url()).await.unwrap();
        search(policy!("1/1h"), store)
    };
    let (one, same, other) = (with_prefix("a").await, with_prefix("a").await, with_prefix("a:b").await);
    assert!(one.acquire("k").await.unwrap().allowed());
    assert!(!same.acquire("k").await.unwrap().allowed());
    assert!(other.acquire("k").await.unwrap().allowed());
    assert!(one.acquire(":b:{k").await.unwrap().allowed());
    assert!(!other.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn limiters_of_different_names_share_nothing_and_those_of_one_share_all() {
    let server = Server::start().unwrap();
    let store = Arc::new(connect(&server.url()).await);
    let other_process = Arc::new(connect(&server.url()).await);
    let names =
        ["search", "login", "Search", "", "a:b", "a", "{a}", "a}", "%3A", ":", "*", "[a-z]", "Größe", "two words\n"];
    for (i, name) in names.into_iter().enumerate() {
        for key in ["customer 7", "b:customer 7", ""] {
            let limiter = Limiter::new(name, policy!("2/1h"), store.clone());
            assert_eq!(limiter.acquire(key).await.unwrap().used(), 1, "{name:?}, {key:?}");
            let limiter = Limiter::new(name, policy!("2/1h"), other_process.clone());
            assert_eq!(limiter.acquire(key).await.unwrap().used(), 2, "{name:?}, {key:?}");
        }
        let keys = server.command(&["DBSIZE"]).unwrap().int();
        assert_eq!(keys, 3 * (i as i64 + 1), "{name:?}");
    }
    for name in names {
        assert!(Limiter::new(name, policy!("2/1h"), store.clone()).reset("customer 7").await.unwrap());
    }
    let refreshed = Limiter::new("a", policy!("2/1h"), store.clone());
    assert_eq!(refreshed.status("b:customer 7").await.unwrap().used(), 2, "a reset reaches one log alone");
}

#[tokio::test]
async fn the_redis_key_is_the_prefix_the_name_and_the_key() {
    let server = Server::start().unwrap();
    let store = builder().prefix("shop").connect(&server.url()).await.unwrap();
    let key = |name: &str, key: &str| store.redis_key(LogKey::new(Name::new(name), key));
    assert_eq!(key("search", "customer 7"), b"shop:{search:customer 7}");
    assert_eq!(key("a:b {c}", "{50%}"), b"shop:{a%3Ab%20%7Bc%7D:{50%25%7D}");
    let expected = key("a:b {c}", "{50%}");
    assert!(Limiter::new("a:b {c}", policy!("1/1h"), store).acquire("{50%}").await.unwrap().allowed());
    assert_eq!(server.command(&[b"EXISTS".as_slice(), &expected]).unwrap().int(), 1);
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let server = Server::start().unwrap();
    let url = format!("redis+unix://{}", server.socket().display());
    let limiter = search(policy!("1/1h"), connect(&url).await);
    assert!(limiter.acquire("k").await.unwrap().allowed());
    assert!(!limiter.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn a_connection_of_the_users_own_will_do() {
    let server = Server::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let limiter = search(policy!("1/1h"), builder().with_connection(connection).unwrap());
    assert!(limiter.acquire("k").await.unwrap().allowed());
    assert!(!limiter.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn a_cluster_connection_of_the_users_own_will_do() {
    let cluster = Cluster::start().unwrap();
    let nodes = cluster.nodes().iter().map(Server::url);
    let client = redis::cluster::ClusterClientBuilder::new(nodes).retries(0).build().unwrap();
    let connection = limiter_redis::Connection::from(client.get_async_connection().await.unwrap());
    let limiter = search(policy!("1/1h"), builder().with_connection(connection).unwrap());
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert!(limiter.acquire(key).await.unwrap().allowed());
        assert!(!limiter.acquire(key).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn a_url_without_a_scheme_is_answered_with_what_to_write() {
    let server = Server::start().unwrap();
    let address = server.url().replace("redis://", "");
    let error = builder().connect(&address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().ends_with(&format!("write redis://{address}")), "{error}");
}

#[tokio::test]
async fn a_store_starts_while_redis_is_away() {
    let mut server = Server::start().unwrap();
    server.kill();
    let limiter = search(policy!("1/1h"), RedisStore::builder().connect_lazily(&server.url()).unwrap());
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
    let store = connect(&server.url()).await;
    let second = policy!("1/1s");
    let ttl = |key: &str| {
        let stored = store.redis_key(LogKey::new(Name::default(), key));
        server.command(&[b"PTTL".as_slice(), &stored]).unwrap().int()
    };
    store.apply(Op::acquire("k", &second).at(Timestamp::from_micros(5_000_000).unwrap())).await.unwrap();
    assert!((58_000..=61_000).contains(&ttl("k")), "{}", ttl("k"));
    store.apply(Op::acquire("now", &second)).await.unwrap();
    assert!((1..=1_126).contains(&ttl("now")), "an eighth more at most: {}", ttl("now"));
}

/// The feature `tokio` of the core comes with this crate, so waiting needs no timer of the user's.
#[tokio::test]
async fn an_acquire_waits_on_tokio() {
    let server = Server::start().unwrap();
    let limiter = search(policy!("1/300ms"), connect(&server.url()).await);
    assert!(limiter.acquire("k").await.unwrap().allowed());
    let begun = tokio::time::Instant::now();
    let decision = limiter.acquire("k").within(Duration::from_secs(10)).await.unwrap();
    assert!(decision.allowed() && begun.elapsed() > Duration::from_millis(150), "{decision:?}");
    assert!(!limiter.acquire("k").within(Duration::from_millis(1)).await.unwrap().allowed());
}
