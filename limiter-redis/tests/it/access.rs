//! Permissions and connections.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use limiter_core::store::LogKey;
use limiter_core::{ErrorKind, Limiter, policy};
use limiter_redis::{Connection, RedisStore};
use testbed::server::{Cluster, Server};

use crate::scan::scanned;
use crate::support::{builder, connect, limited, search, send, shared_cluster, until};

/// The documented rules: for all stores, for live keys, for a Cluster, and for the warning about eviction.
pub(crate) fn rules() -> [&'static str; 4] {
    let readme = include_str!("../../README.md");
    let (_, section) = readme.split_once("\n# Permissions\n").unwrap();
    let (section, _) = section.split_once("\n# ").unwrap();
    let blocks = section.split("```text\n").skip(1);
    let rules = blocks.map(|block| block.split_once("\n```").unwrap().0);
    rules.collect::<Vec<_>>().try_into().unwrap()
}

/// The rules for all stores, for a user with a password.
pub(crate) fn basic_rules() -> String {
    format!("on >secret {}", rules()[0])
}

pub(crate) fn allow(server: &Server, user: &str, rules: &str) {
    send(server, &format!("ACL SETUSER {user} {rules}"));
}

pub(crate) fn as_user(url: &str, user: &str) -> String {
    url.replace("://", &format!("://{user}:secret@"))
}

/// The conformance suite runs with the basic rules, so they suffice. A rule too many is found here.
#[test]
fn the_rules_are_the_commands_of_the_scripts() {
    let mut called = BTreeSet::from(["evalsha", "eval", "scan"].map(str::to_owned));
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lua")).unwrap() {
        let script = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for call in ["call('", "call)('"] {
            let words = script.split(call).skip(1);
            let words = words.map(|rest| rest.split('\'').next().unwrap().to_lowercase());
            called.extend(words);
        }
    }
    let [basic, live, ..] = rules();
    let allowed = basic.split(' ').chain(live.split(' ')).skip(1);
    let allowed = allowed.map(|rule| rule.trim_start_matches('+').replace("|usage", ""));
    assert_eq!(allowed.collect::<BTreeSet<_>>(), called);
}

#[tokio::test]
async fn a_user_with_the_documented_rules_can_inspect_and_scan() {
    let [_, live, ..] = rules();
    let server = Server::start().unwrap();
    allow(&server, "shop", &format!("{} {live}", basic_rules()));
    let store = Arc::new(connect(&as_user(&server.url(), "shop")).await);
    let limiter = search(policy!("3/1h"), store.clone());
    for allowed in [true, true, true, false] {
        assert_eq!(limiter.acquire("k").await.unwrap().is_allowed(), allowed);
    }
    let log = LogKey::new(limiter.name(), "k");
    assert_eq!(store.inspect(log).await.unwrap().unwrap().entries, 3);
    let page = store.scan(None, None, 1000).await.unwrap();
    assert_eq!((page.keys.len(), page.next.is_none()), (1, true));
}

/// The name is part of the pattern: a user may be given the keys of one limiter alone.
#[tokio::test]
async fn a_user_for_one_limiter_reaches_no_other() {
    let server = Server::start().unwrap();
    let rules = basic_rules().replace("{*", "{search:*}");
    allow(&server, "searcher", &rules);
    let store = Arc::new(connect(&as_user(&server.url(), "searcher")).await);
    let acquire = async |name: &str, key| {
        let limiter = Limiter::new(name, policy!("3/1h"), store.clone());
        limiter.acquire(key).await
    };
    for key in ["customer 7", "", "}", "a:{b}"] {
        assert!(acquire("search", key).await.unwrap().is_allowed());
        for name in ["login", "", "search2", "search:", "Search", "*"] {
            let error = acquire(name, key).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{name}: {error:?}");
        }
    }
}

/// Up to Redis 7.0, the server's text does not contain the command.
#[tokio::test]
async fn a_missing_permission_or_a_wrong_password_is_a_configuration_error() {
    let server = Server::start().unwrap();
    for (user, prefix, named) in [
        ("zadd", "limiter", "zadd"),
        ("zrange", "limiter", "zrange"),
        ("time", "limiter", "time"),
        ("get", "elsewhere", "Permissions"),
    ] {
        allow(&server, user, &format!("{} -{user}", basic_rules()));
        let url = as_user(&server.url(), user);
        let store = builder().prefix(prefix).connect(&url).await;
        let limiter = search(policy!("3/1h"), store.unwrap());
        let error = limiter.acquire("k").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
        let text = error.to_string();
        let names = |part: &str| text.to_lowercase().contains(&part.to_lowercase());
        assert!(names(named) && names("Permissions"), "{user}: {text}");
    }
    let guess = as_user(&server.url(), "zadd").replace("secret", "guess");
    let error = builder().connect(&guess).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(!format!("{error} {error:?}").contains("guess"), "{error:?}");
}

#[tokio::test]
async fn a_url_of_another_kind_of_server_is_refused_with_the_right_scheme() {
    let server = Server::start().unwrap();
    let node = &shared_cluster().nodes()[0];
    let limiter = limited(node, policy!("9/1h")).await;
    let mut refused = None;
    for key in 0..64 {
        refused = refused.or(limiter.acquire(key).await.err());
    }
    let error = refused.expect("other nodes have keys, too");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
    let url = server.url().replace("://", "+cluster://");
    let error = builder().connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(error.to_string().contains("begin with redis://"), "{error}");
}

/// On one server and in a Cluster, a password is changed, and later changed back.
#[tokio::test]
async fn a_server_that_refused_to_reconnect_is_asked_again() {
    let server = Server::start().unwrap();
    let cluster = Cluster::start().unwrap();
    for (url, nodes) in [
        (server.url(), std::slice::from_ref(&server)),
        (cluster.url(), cluster.nodes()),
    ] {
        let rules = |rules: &str| nodes.iter().for_each(|node| allow(node, "shop", rules));
        rules(&format!("{} {}", basic_rules(), self::rules()[2]));
        let limiter = search(policy!("9/1h"), connect(&as_user(&url, "shop")).await);
        assert_eq!(limiter.acquire("k").await.unwrap().used(), 1);
        rules("resetpass >other");
        nodes
            .iter()
            .for_each(|node| send(node, "CLIENT KILL TYPE normal"));
        let refused = async || {
            let error = limiter.acquire("k").await.err();
            error.is_some_and(|error| error.kind() == ErrorKind::Configuration)
        };
        until("a refusal", async || refused().await).await;
        assert!(refused().await, "the server is not asked again so soon");
        rules(">secret");
        tokio::time::sleep(Duration::from_millis(101)).await;
        let decision = limiter.acquire("k").await;
        assert_eq!(decision.unwrap().used(), 2, "an old refusal");
    }
}

#[tokio::test]
async fn every_kind_of_connection_will_do() {
    let server = Server::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let multiplexed = client.get_multiplexed_async_connection().await.unwrap();
    let manager = client.get_connection_manager().await.unwrap();
    let with = |connection| builder().with_connection(connection).unwrap();
    let stores = [
        connect(&format!("redis+unix://{}", server.socket().display())).await,
        with(Connection::new(multiplexed)),
        with(Connection::new(manager)),
        connect(&shared_cluster().url()).await,
    ];
    for (number, store) in stores.into_iter().enumerate() {
        let limiter = Limiter::new(format!("connection {number}"), policy!("1/1h"), store);
        for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            assert!(limiter.acquire(key).await.unwrap().is_allowed());
            assert!(!limiter.acquire(key).await.unwrap().is_allowed());
        }
        let found = scanned(limiter.store(), Some(limiter.name()), 100).await;
        assert_eq!(found.len(), 8, "a scan over connection {number}");
    }
}

#[tokio::test]
async fn a_store_starts_while_redis_is_away() {
    let mut server = Server::start().unwrap();
    server.kill();
    let store = RedisStore::builder().connect_lazy(&server.url()).unwrap();
    let limiter = search(policy!("1/1h"), store);
    assert!(limiter.acquire("k").await.unwrap_err().is_retryable());
    server.restart().unwrap();
    until("a recovery", async || limiter.acquire("k").await.is_ok()).await;
    assert_eq!(limiter.peek("k").await.unwrap().used(), 1);
}

#[tokio::test]
async fn the_longest_durations_are_timeouts_too() {
    let server = Server::start().unwrap();
    let builder = RedisStore::builder()
        .connect_timeout(Duration::MAX)
        .response_timeout(Duration::MAX)
        .retries(u32::MAX);
    for url in [server.url(), shared_cluster().url()] {
        for store in [
            builder.clone().connect(&url).await.unwrap(),
            builder.clone().connect_lazy(&url).unwrap(),
        ] {
            let limiter = Limiter::new("longest", policy!("9/1h"), store);
            for answer in join_all((0..3).map(|_| limiter.acquire("k"))).await {
                assert!(answer.unwrap().used() > 0);
            }
            assert!(limiter.store().scan(None, None, 10).await.is_ok());
            assert!(limiter.status("k").await.is_ok());
            limiter.reset("k").await.unwrap();
        }
    }
}
