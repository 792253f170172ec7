//! Plays the faults of the first table of docs/faults.md on real servers: the errors and decisions of calls, and what counts afterwards.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, Limiter, SharedStore, policy};
use limiter_memory::MemoryStore;
use limiter_postgres::{PostgresStore, PostgresUrl};
use limiter_redis::RedisStore;
use limiter_wrappers::Guarded;
use testbed::server::{Cluster, Postgres, Server};
use testbed::{Network, Proxy};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: &str = include_str!("../../../docs/faults.md");

/// A server, and the network in front of it. The nodes of a Cluster announce their addresses, which are past any network.
enum Scene {
    Redis(Server, Proxy),
    Cluster(Cluster),
    Postgres(Postgres, Proxy),
}

impl Scene {
    fn start(server: &str) -> Self {
        match server {
            "Redis" => {
                // It keeps each confirmed write when it is killed.
                let args = ["--appendonly", "yes", "--appendfsync", "no"];
                let server = Server::start_with(&args).unwrap();
                let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
                Self::Redis(server, proxy)
            }
            "Redis Cluster" => {
                let cluster = Cluster::start().unwrap();
                for node in cluster.nodes() {
                    // Otherwise the others refuse all calls as soon as they notice.
                    send(node, "CONFIG SET cluster-require-full-coverage no");
                }
                Self::Cluster(cluster)
            }
            _ => {
                let server = Postgres::start().unwrap();
                let proxy = Proxy::start(server.address()).unwrap();
                Self::Postgres(server, proxy)
            }
        }
    }

    async fn connect(&self) -> SharedStore {
        let url = match self {
            Self::Redis(_, proxy) => format!("redis://{}", proxy.address()),
            Self::Cluster(cluster) => cluster.url(),
            Self::Postgres(server, proxy) => {
                let [server_address, proxy] =
                    [server.address(), proxy.address()].map(|it| it.to_string());
                let url = server.url().replace(&server_address, &proxy);
                let url: PostgresUrl = url.parse().unwrap();
                return Arc::new(PostgresStore::new(url.open_maintained().unwrap()));
            }
        };
        let builder = RedisStore::builder().connect_timeout(PATIENCE);
        Arc::new(builder.connect(&url).await.unwrap())
    }

    /// Begins a fault, or ends it.
    fn set(&mut self, fault: &str, begins: bool) {
        let network = match fault {
            _ if !begins => Network::Healthy,
            "requests do not arrive" => Network::HoldRequests,
            "replies do not arrive" => Network::HoldReplies,
            "requests are cut" => Network::CutRequest(50),
            "replies are cut" => Network::CutReply(8),
            _ => Network::Healthy,
        };
        let redis = match self {
            Self::Postgres(server, _) if fault == "killed" && begins => return server.kill(),
            Self::Postgres(server, _) if fault == "killed" => return server.restart().unwrap(),
            Self::Postgres(_, proxy) => return proxy.set(network),
            Self::Redis(server, proxy) => {
                proxy.set(network);
                server
            }
            Self::Cluster(cluster) => &mut cluster.nodes_mut()[0],
        };
        match (fault, begins) {
            ("killed" | "a master killed", true) => redis.kill(),
            ("killed" | "a master killed", false) => redis.restart().unwrap(),
            ("paused" | "a master paused", true) => redis.pause().unwrap(),
            ("paused" | "a master paused", false) => redis.resume().unwrap(),
            ("read-only", true) => send(redis, "REPLICAOF 127.0.0.1 1"),
            ("read-only", false) => send(redis, "REPLICAOF NO ONE"),
            ("memory full", true) => send(redis, "CONFIG SET maxmemory 1"),
            ("memory full", false) => send(redis, "CONFIG SET maxmemory 0"),
            ("requests are cut" | "replies are cut", _) => {}
            _ => panic!("nobody knows how to play this fault: {fault}"),
        }
    }

    /// Returns five keys, of the master with this number.
    fn keys(&self, store: &SharedStore, node: usize) -> Vec<String> {
        let keys = (0..).map(|n| format!("key {n}"));
        let address = match self {
            Self::Cluster(cluster) => Some(format!("127.0.0.1:{}", cluster.nodes()[node].port())),
            _ => None,
        };
        let node = |key: &String| store.node(LogKey::new("faults".into(), key));
        keys.filter(|key| address.is_none() || node(key).as_deref() == address.as_deref())
            .take(5)
            .collect()
    }
}

fn send(server: &Server, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    server.command::<()>(words).unwrap();
}

/// Waits until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn is_decided(limiter: &Limiter, key: &str) -> bool {
    limiter.acquire(key).await.is_ok_and(|it| it.is_allowed())
}

/// Whether a call during an outage ends as the stack with this number promises.
fn is_right(stack: usize, result: &Result<Decision, Error>) -> bool {
    match (stack, result) {
        (0, Err(error)) => error.is_retryable(),
        (1 | 3, Ok(decision)) => decision.is_allowed(),
        (2, Ok(decision)) => !decision.is_allowed(),
        _ => false,
    }
}

/// Plays a fault for a store, and for a stack with each choice of what to do in an outage.
async fn play(server: &str, fault: &str, error: &str) {
    let what = |text: &str| format!("{server}, {fault}: {text}");
    let mut scene = Scene::start(server);
    let limiter = |store| Limiter::new("faults", policy!("1000000/1h"), store);
    let store = scene.connect().await;
    let [lost, others] = [0, 1].map(|node| scene.keys(&store, node));
    let bare = limiter(store);
    let mut guards = Vec::new();
    for _ in 0..4 {
        guards.push(Guarded::builder(scene.connect().await));
    }
    let [error_, open, closed, local] = guards.try_into().unwrap();
    let stacks = [
        error_.or_error(),
        open.fail_open(),
        closed.fail_closed(),
        local.fallback(MemoryStore::new()),
    ];
    let limiters = stacks
        .each_ref()
        .map(|stack| limiter(Arc::new(stack.clone())));
    let decides = async |key: &str| {
        for limiter in &limiters {
            until(&what("it decides"), async || is_decided(limiter, key).await).await;
        }
    };
    // A call that is late on a busy machine begins an outage.
    let is_well = async || {
        decides(&lost[4]).await;
        let is_well = |stack: &Guarded<_>| !stack.in_outage() && stack.carried_logs() == 0;
        stacks.iter().all(is_well)
    };
    until(&what("all is well"), is_well).await;
    until(&what("it decides"), async || {
        is_decided(&bare, &lost[0]).await
    })
    .await;
    let before = bare.peek(&lost[0]).await.unwrap().used();

    scene.set(fault, true);
    let fails = async || {
        let failed = bare.acquire(&lost[4]).await.unwrap_err();
        assert!(failed.is_retryable(), "{}", what(&failed.to_string()));
        failed.kind().as_str() == error
    };
    until(&what(error), fails).await;
    let mut calls = 0;
    let opens = async || {
        for (stack, limiter) in limiters.iter().enumerate() {
            let call = |id| {
                limiter
                    .acquire(&lost[stack])
                    .idempotency_key(id)
                    .into_future()
            };
            for result in join_all((calls..calls + 4).map(call)).await {
                assert!(
                    is_right(stack, &result),
                    "{stack}, {}: {result:?}",
                    what("")
                );
            }
        }
        calls += 4;
        let is_open = |stack: &Guarded<_>| stack.breakers().iter().any(|(_, is_open)| *is_open);
        stacks
            .iter()
            .all(|stack| is_open(stack) && stack.in_outage())
    };
    until(&what("each breaker opens"), opens).await;
    if let Scene::Cluster(cluster) = &scene {
        let lost = format!("127.0.0.1:{}", cluster.nodes()[0].port());
        // The masters that live decide, and no breaker but the lost master's is open.
        let is_apart = async || {
            for limiter in limiters.iter().chain([&bare]) {
                let calls = (0..20).map(|_| limiter.acquire(&others[0]).into_future());
                if join_all(calls).await.iter().any(Result::is_err) {
                    return false;
                }
            }
            let is_right = |(node, is_open): (Option<Arc<str>>, bool)| {
                is_open == (node.as_deref() == Some(&*lost))
            };
            stacks
                .iter()
                .all(|stack| stack.breakers().into_iter().all(is_right))
        };
        until(&what("the others decide"), is_apart).await;
    }
    // The more calls wait, the more a store has to catch up with.
    let steady = async || {
        let calls = (0..300).map(|_| bare.acquire(&lost[4]).into_future());
        join_all(calls).await.iter().all(Result::is_ok)
    };
    if error == "timeout" {
        assert!(!steady().await, "{}", what("calls wait"));
    }
    scene.set(fault, false);
    until(&what("many calls decide again"), steady).await;
    until(&what("all is well again"), is_well).await;

    for (stack, key) in lost[..4].iter().enumerate() {
        for id in 0..calls {
            let repeat = || bare.acquire(key).idempotency_key(id).into_future();
            until(&what("a repetition"), async || repeat().await.is_ok()).await;
        }
        // What a fallback admitted may count once more.
        // A node of the Cluster saves nothing.
        let is_kept = stack == 0 && fault != "a master killed";
        let calls = calls as u64 + if is_kept { before } else { 0 };
        let most = if stack == 3 { 2 * calls } else { calls };
        let used = bare.peek(key).await.unwrap().used();
        assert!(
            (calls..=most).contains(&used),
            "{stack}, {}: {used} of {calls}",
            what("counts")
        );
    }
}

#[test]
fn each_fault_of_the_page_is_an_outage_that_ends_and_counts_each_key_once() {
    let rows = PAGE
        .split("| server | fault |")
        .nth(1)
        .unwrap()
        .lines()
        .skip(2);
    let rows = rows.take_while(|row| row.starts_with('|'));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 13, "{rows:?}");
    thread::scope(|scope| {
        for first in 0..4 {
            let rows = rows.iter().skip(first).step_by(4);
            scope.spawn(move || {
                for row in rows {
                    Runtime::new()
                        .unwrap()
                        .block_on(play(row[1], row[2], row[3]));
                }
            });
        }
    });
}
