//! Every fault against every stack of wrappers around a `RedisStore` or a `PostgresStore`, rendered as docs/faults.md; random faults.
//!
//! These tests assert times, so they run one after the other, in a test program that runs nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::SharedStore;
use limiter_memory::MemoryStore;
use limiter_postgres::{PostgresStore, PostgresUrl};
use limiter_redis::RedisStore;
use limiter_wrappers::Guarded;
use testbed::RedisFault::Network as Net;
use testbed::server::Cluster;
use testbed::{
    ClusterFault, Network, Observed, PostgresFault, PostgresScene, RedisFault, RedisScene, Subject,
    alone, observe, test_all,
};
use tokio::time::timeout;

const RESPONSE: Duration = Duration::from_millis(200);
/// Two attempts, with the pauses between them and some time to notice.
const BOUND: Duration = Duration::from_millis(2 * 220 + 60);
/// The batch before a call and its own, each with two requests.
const POSTGRES_BOUND: Duration = Duration::from_millis(4 * 200 + 60);
const TIMEOUT: Duration = Duration::from_millis(120);
const TIMEOUT_BOUND: Duration = Duration::from_millis(120 + 60);
const PAUSE: Duration = Duration::from_millis(300);

const STACKS: [&str; 7] = [
    "plain",
    "timeout",
    "breaker",
    "fail open",
    "fail closed",
    "fallback",
    "recommended",
];

/// Returns the stacks in the order of [`STACKS`], each around a new store.
async fn stacks(url: &str) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let bound = if url.starts_with("postgres") {
        POSTGRES_BOUND
    } else {
        BOUND
    };
    for name in STACKS {
        let store = connect(url, RESPONSE).await;
        if name == "plain" {
            subjects.push(Subject {
                name,
                store,
                bound,
                most: Some(1),
            });
            continue;
        }
        let bare = Guarded::builder(store)
            .timeout(Duration::MAX)
            .failure_threshold(u32::MAX)
            .denial_cache_capacity(0)
            .cooldown(PAUSE);
        let (store, bound, most) = match name {
            "timeout" => (bare.timeout(TIMEOUT).or_error(), TIMEOUT_BOUND, Some(1)),
            "breaker" => (
                bare.timeout(TIMEOUT).failure_threshold(3).or_error(),
                TIMEOUT_BOUND,
                Some(1),
            ),
            "fail open" => (bare.fail_open(), bound, None),
            "fail closed" => (bare.fail_closed(), bound, Some(1)),
            "fallback" => (bare.fallback(MemoryStore::new()), bound, Some(2)),
            _ => {
                let stack = bare
                    .timeout(TIMEOUT)
                    .failure_threshold(3)
                    .denial_cache_capacity(100_000);
                (stack.fallback(MemoryStore::new()), TIMEOUT_BOUND, Some(2))
            }
        };
        let store = Arc::new(store);
        subjects.push(Subject {
            name,
            store,
            bound,
            most,
        });
    }
    subjects
}

/// Connects a store, to which a busy machine may not connect immediately.
async fn connect(url: &str, patience: Duration) -> SharedStore {
    if url.starts_with("postgres") {
        let url: PostgresUrl = url.parse().unwrap();
        let table = url.open_maintained().unwrap();
        return Arc::new(PostgresStore::new(table.timeout(patience)));
    }
    let builder = RedisStore::builder().response_timeout(patience);
    let connect = async {
        loop {
            match builder.clone().connect(url).await {
                Ok(store) => break Arc::new(store),
                Err(error) => println!("not connected yet: {error}"),
            }
        }
    };
    timeout(Duration::from_secs(20), connect)
        .await
        .expect("the server is there")
}

/// Connects a store that waits for long, to check logs.
async fn direct(url: String) -> SharedStore {
    connect(&url, Duration::from_secs(20)).await
}

/// The most frequent result of each stack's callers during a fault.
const LATE: &str = "Slow | Slow | Slow | Slow | Slow | Slow | Slow";
const REFUSED: &str =
    "Err unavailable | Err unavailable | Err unavailable | Ok | Ok, denied | Ok | Ok";
const SILENT: &str =
    "Err timeout | Err timeout | Err unavailable | Slow | Slow, denied | Slow | Ok";
/// A call takes longer than the timeout of the stacks that have one.
const FAR: &str = "Slow | Err timeout | Err unavailable | Slow | Slow | Slow | Ok";
/// Each call opens a connection, for which Postgres starts a process. How long that takes is the machine's.
const EITHER: &str = "Ok or Slow";
const RECONNECTS: &str = "Err unavailable | Err unavailable | Err unavailable | Ok or Slow | Ok or Slow, denied | Ok or Slow | Ok";
const NONE: &str = "Ok | Ok | Ok | Ok | Ok | Ok | Ok";

const LATENCY: Network = Network::Latency(Duration::from_millis(30));
const FAULTS: [(&str, RedisFault, &str); 18] = [
    ("latency of 30 ms each way", Net(LATENCY), LATE),
    (
        "bandwidth of 10000 bytes/s",
        Net(Network::Bandwidth(10_000)),
        LATE,
    ),
    ("connections refused", Net(Network::Refuse), REFUSED),
    ("connections reset", Net(Network::Reset), REFUSED),
    (
        "half open: accepts, never answers",
        Net(Network::HalfOpen),
        SILENT,
    ),
    (
        "half open: requests do not arrive",
        Net(Network::HoldRequests),
        SILENT,
    ),
    (
        "half open: replies do not arrive",
        Net(Network::HoldReplies),
        SILENT,
    ),
    ("cut in mid-request", Net(Network::CutRequest(50)), REFUSED),
    ("cut in mid-reply", Net(Network::CutReply(8)), REFUSED),
    ("kill -9, restart with data", RedisFault::Kill, REFUSED),
    (
        "kill -9, restart without data",
        RedisFault::KillAndForget,
        REFUSED,
    ),
    ("failover to a replica", RedisFault::Failover, REFUSED),
    ("SIGSTOP, SIGCONT", RedisFault::Pause, SILENT),
    ("LOADING", RedisFault::Loading, REFUSED),
    ("BUSY", RedisFault::Busy, REFUSED),
    ("OOM", RedisFault::OutOfMemory, REFUSED),
    ("READONLY", RedisFault::ReadOnly, REFUSED),
    ("NOREPLICAS", RedisFault::NoReplicas, REFUSED),
];
const FAULTS_OF_CLUSTER: [(&str, ClusterFault, &str); 2] = [
    ("CLUSTERDOWN", ClusterFault::Down, REFUSED),
    ("slot migration", ClusterFault::Migration, NONE),
];

const FAULTS_OF_POSTGRES: [(&str, PostgresFault, &str); 13] = [
    (
        "a round trip of 80 ms",
        PostgresFault::Network(Network::Latency(Duration::from_millis(40))),
        FAR,
    ),
    (
        "connections refused",
        PostgresFault::Network(Network::Refuse),
        REFUSED,
    ),
    (
        "connections reset",
        PostgresFault::Network(Network::Reset),
        REFUSED,
    ),
    (
        "half open: accepts, never answers",
        PostgresFault::Network(Network::HalfOpen),
        SILENT,
    ),
    (
        "half open: replies do not arrive",
        PostgresFault::Network(Network::HoldReplies),
        SILENT,
    ),
    (
        "cut in mid-request",
        PostgresFault::Network(Network::CutRequest(50)),
        REFUSED,
    ),
    (
        "cut in mid-reply",
        PostgresFault::Network(Network::CutReply(8)),
        RECONNECTS,
    ),
    ("kill -9, restart", PostgresFault::Kill, REFUSED),
    ("all rows locked", PostgresFault::LockedRows, SILENT),
    ("the table locked", PostgresFault::LockedTable, SILENT),
    (
        "the synchronous standby is gone",
        PostgresFault::NoStandby,
        SILENT,
    ),
    ("read-only", PostgresFault::ReadOnly, RECONNECTS),
    ("all sessions terminated", PostgresFault::Terminated, NONE),
];

/// How a violation begins that a busy machine may cause.
const LATE_CALLS: &str = "calls usually take";

const REDIS_ROWS: usize = FAULTS.len() + FAULTS_OF_CLUSTER.len();

/// What a fault did: its row of the table, and what is wrong.
type Row = (String, String);

/// Runs new stacks through a fault of Redis.
async fn seen_of_redis(fault: RedisFault) -> Vec<Observed> {
    let mut scene = RedisScene::start().unwrap();
    let subjects = stacks(&scene.url()).await;
    let inject = |during: &mut dyn FnMut()| {
        fault
            .inject(&mut scene, during)
            .map(|()| scene.server.url())
    };
    observe(&subjects, fault.loses_data(), inject, direct)
        .await
        .unwrap()
}

/// Runs new stacks through a fault of Postgres.
async fn seen_of_postgres(fault: PostgresFault) -> Vec<Observed> {
    let mut scene = PostgresScene::start().unwrap();
    let subjects = stacks(&scene.url()).await;
    let inject = |during: &mut dyn FnMut()| {
        fault
            .inject(&mut scene, during)
            .map(|()| scene.server.url())
    };
    observe(&subjects, false, inject, direct).await.unwrap()
}

/// Runs new stacks through a fault of a Cluster.
async fn seen_of_cluster(fault: ClusterFault) -> Vec<Observed> {
    let cluster = Cluster::start().unwrap();
    let subjects = stacks(&cluster.url()).await;
    let inject = |during: &mut dyn FnMut()| fault.inject(&cluster, during).map(|()| cluster.url());
    let seen = observe(&subjects, false, inject, direct).await.unwrap();
    let redirected = |text| {
        cluster
            .nodes()
            .iter()
            .any(|node| node.info("errorstats").unwrap().contains(text))
    };
    assert!(
        fault != ClusterFault::Migration
            || redirected("errorstat_ASK:") && redirected("errorstat_MOVED:")
    );
    seen
}

/// Runs one fault.
///
/// A busy machine may make a decision slow, so that is tried again. What a stack waits for by itself is there at each try.
async fn row(
    name: &str,
    expected: &str,
    loses_data: bool,
    run: impl AsyncFn() -> Vec<Observed>,
) -> Row {
    let mut tries_left = 5;
    loop {
        let seen = run().await;
        let during = seen.iter().map(|observed| observed.during.to_string());
        let found = during.collect::<Vec<_>>().join(" | ");
        let unhurried = |text: &str| text.replace(EITHER, "Ok").replace("Slow", "Ok");
        let is_late = unhurried(&found) == unhurried(expected);
        let mut cells = found.split(" | ").zip(expected.split(" | "));
        let is_expected = is_late
            && cells.all(|(found, expected)| found == expected || expected.starts_with(EITHER));
        let all = || seen.iter().flat_map(|observed| &observed.violations);
        tries_left -= 1;
        let is_wrong = !is_expected || all().next().is_some();
        if is_wrong
            && is_late
            && all().all(|violation| violation.starts_with(LATE_CALLS))
            && tries_left > 0
        {
            println!("{name}: {seen:?}, once more");
            continue;
        }
        println!("{name}: {seen:?}");
        let wrong = match is_wrong {
            true => format!("{name}: expected {expected}, found {seen:?}\n"),
            false => String::new(),
        };
        let afterwards = if loses_data {
            "lost units can be admitted again"
        } else {
            "nothing is lost"
        };
        return (format!("| {name} | {expected} | {afterwards} |\n"), wrong);
    }
}

/// The rows of all faults. Every `THREADS`th runs on one thread.
fn rows() -> Vec<Row> {
    // They wait more than they compute.
    const THREADS: usize = 3;
    let run = |number: usize| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            if let Some((name, fault, expected)) = FAULTS.get(number) {
                row(name, expected, fault.loses_data(), async || {
                    seen_of_redis(*fault).await
                })
                .await
            } else if let Some((name, fault, expected)) =
                FAULTS_OF_CLUSTER.get(number - FAULTS.len())
            {
                row(name, expected, false, async || {
                    seen_of_cluster(*fault).await
                })
                .await
            } else {
                let (name, fault, expected) = FAULTS_OF_POSTGRES[number - REDIS_ROWS];
                row(name, expected, false, async || {
                    seen_of_postgres(fault).await
                })
                .await
            }
        })
    };
    let count = REDIS_ROWS + FAULTS_OF_POSTGRES.len();
    let part = |first| {
        (first..count)
            .step_by(THREADS)
            .map(|number| (number, run(number)))
            .collect::<Vec<_>>()
    };
    let rows: BTreeMap<usize, Row> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..THREADS)
            .map(|first| scope.spawn(move || part(first)))
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    rows.into_values().collect()
}

#[test]
fn every_fault_against_every_stack() {
    let _alone = alone();
    let (rows, wrong): (Vec<String>, String) = rows().into_iter().unzip();
    assert!(wrong.is_empty(), "{wrong}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults.md");
    let (redis, postgres) = rows.split_at(REDIS_ROWS);
    let text = include_str!("faults.md").replace("{rows}\n", &redis.concat());
    let text = text.replace("{postgres}\n", &postgres.concat());
    if std::env::var_os("LIMITER_RENDER").is_some() {
        fs::write(path, text).unwrap();
    } else {
        let command = "LIMITER_RENDER=1 cargo test -p limiter-wrappers --test faults";
        assert!(
            fs::read_to_string(path).unwrap() == text,
            "docs/faults.md differs: {command}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_in_turn() {
    let _alone = alone();
    let seed = std::env::var("LIMITER_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    // Loading takes too long for many of them.
    let lossless = |fault: &RedisFault| !fault.loses_data() && *fault != RedisFault::Loading;
    let faults: Vec<_> = FAULTS
        .into_iter()
        .map(|(_, fault, _)| fault)
        .filter(lossless)
        .collect();
    let mut scene = RedisScene::start().unwrap();
    let subjects = stacks(&scene.url()).await;
    let inject = |during: &mut dyn FnMut()| {
        for _ in 0..if test_all() { 30 } else { 3 } {
            let fault = faults[random.usize(..faults.len())];
            println!("LIMITER_SEED={seed}: {fault:?}");
            fault.inject(&mut scene, during)?;
            during();
        }
        Ok(scene.server.url())
    };
    for observed in observe(&subjects, false, inject, direct).await.unwrap() {
        let wrong = observed
            .violations
            .iter()
            .any(|violation| !violation.starts_with(LATE_CALLS));
        assert!(!wrong, "LIMITER_SEED={seed}: {observed:?}");
    }
}
