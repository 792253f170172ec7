//! Every fault against every stack of wrappers around a `RedisStore` or a `PostgresStore`, rendered as docs/faults.md; random faults.
//!
//! These tests assert times, so they run one after the other, in a test program that runs nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Limiter, SharedStore, policy};
use limiter_memory::MemoryStore;
use limiter_postgres::{PostgresStore, PostgresUrl};
use limiter_redis::RedisStore;
use limiter_wrappers::Guarded;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use testbed::Network::*;
use testbed::PostgresFault::{LockedRows, LockedTable, Network as Pg, NoStandby, Terminated};
use testbed::RedisFault::{
    Busy, Failover, KillAndForget, Network as Net, NoReplicas, OutOfMemory, Pause,
};
use testbed::{
    ClusterFault, Network, Observed, PostgresFault, PostgresScene, RedisFault, RedisScene, Subject,
    alone, observe, server, test_all,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

use Fault::{Cluster, Postgres, Redis};

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
/// Each call opens a connection, for which Postgres starts a process. How long that takes depends on the machine.
const EITHER: &str = "Ok or Slow";
const RECONNECTS: &str = "Err unavailable | Err unavailable | Err unavailable | Ok or Slow | Ok or Slow, denied | Ok or Slow | Ok";
const NONE: &str = "Ok | Ok | Ok | Ok | Ok | Ok | Ok";

/// A fault of any server.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Redis(RedisFault),
    Cluster(ClusterFault),
    Postgres(PostgresFault),
}

const LATENCY: Network = Latency(Duration::from_millis(30));
const FAR_AWAY: Network = Latency(Duration::from_millis(40));
const OF_REDIS: [(&str, RedisFault, &str); 17] = [
    ("latency of 30 ms each way", Net(LATENCY), LATE),
    ("bandwidth of 10000 bytes/s", Net(Bandwidth(10_000)), LATE),
    ("connections refused", Net(Refuse), REFUSED),
    ("connections reset", Net(Reset), REFUSED),
    ("half open: accepts, never answers", Net(HalfOpen), SILENT),
    (
        "half open: requests do not arrive",
        Net(HoldRequests),
        SILENT,
    ),
    ("half open: replies do not arrive", Net(HoldReplies), SILENT),
    ("cut in mid-request", Net(CutRequest(50)), REFUSED),
    ("cut in mid-reply", Net(CutReply(8)), REFUSED),
    ("kill -9, restart with data", RedisFault::Kill, REFUSED),
    ("kill -9, restart without data", KillAndForget, REFUSED),
    ("failover to a replica", Failover, REFUSED),
    ("SIGSTOP, SIGCONT", Pause, SILENT),
    ("BUSY", Busy, REFUSED),
    ("OOM", OutOfMemory, REFUSED),
    ("READONLY", RedisFault::ReadOnly, REFUSED),
    ("NOREPLICAS", NoReplicas, REFUSED),
];
const OF_CLUSTER: [(&str, ClusterFault, &str); 2] = [
    ("CLUSTERDOWN", ClusterFault::Down, REFUSED),
    ("slot migration", ClusterFault::Migration, NONE),
];
const OF_POSTGRES: [(&str, PostgresFault, &str); 13] = [
    ("a round trip of 80 ms", Pg(FAR_AWAY), FAR),
    ("connections refused", Pg(Refuse), REFUSED),
    ("connections reset", Pg(Reset), REFUSED),
    ("half open: accepts, never answers", Pg(HalfOpen), SILENT),
    ("half open: replies do not arrive", Pg(HoldReplies), SILENT),
    ("cut in mid-request", Pg(CutRequest(50)), REFUSED),
    ("cut in mid-reply", Pg(CutReply(8)), RECONNECTS),
    ("kill -9, restart", PostgresFault::Kill, REFUSED),
    ("all rows locked", LockedRows, SILENT),
    ("the table locked", LockedTable, SILENT),
    ("the synchronous standby is gone", NoStandby, SILENT),
    ("read-only", PostgresFault::ReadOnly, RECONNECTS),
    ("all sessions terminated", Terminated, NONE),
];

/// How a violation begins that a busy machine may cause.
const LATE_CALLS: &str = "calls usually take";

/// What a fault did: its row of the table, and what is wrong.
type Row = (String, String);

/// Waits until a new connection and a call take so little time that a late call is the stack's fault. A machine that stays busy has its
/// try nevertheless.
async fn calm(url: &str) {
    for _ in 0..60 {
        let begun = Instant::now();
        let store = connect(url, RESPONSE).await;
        let call = Limiter::new("calm", policy!("100/1m"), store);
        if call.acquire("a").await.is_ok() && begun.elapsed() < RESPONSE / 4 {
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Runs new stacks through a fault.
async fn seen(fault: Fault) -> Vec<Observed> {
    let seen = match fault {
        Redis(fault) => {
            let mut scene = RedisScene::start().unwrap();
            calm(&scene.url()).await;
            let subjects = stacks(&scene.url()).await;
            let inject = |during: &mut dyn FnMut()| {
                let injected = fault.inject(&mut scene, during);
                injected.map(|()| scene.server.url())
            };
            observe(&subjects, fault.loses_data(), inject, direct).await
        }
        Postgres(fault) => {
            let mut scene = PostgresScene::start().unwrap();
            calm(&scene.url()).await;
            let subjects = stacks(&scene.url()).await;
            let inject = |during: &mut dyn FnMut()| {
                let injected = fault.inject(&mut scene, during);
                injected.map(|()| scene.server.url())
            };
            observe(&subjects, false, inject, direct).await
        }
        Cluster(fault) => {
            let cluster = server::Cluster::start().unwrap();
            calm(&cluster.url()).await;
            let subjects = stacks(&cluster.url()).await;
            let inject =
                |during: &mut dyn FnMut()| fault.inject(&cluster, during).map(|()| cluster.url());
            let seen = observe(&subjects, false, inject, direct).await;
            let stats = cluster
                .nodes()
                .iter()
                .map(|node| node.info("errorstats").unwrap());
            let stats: String = stats.collect();
            let redirects = ["errorstat_ASK:", "errorstat_MOVED:"];
            assert!(
                fault != ClusterFault::Migration || redirects.iter().all(|it| stats.contains(it))
            );
            seen
        }
    };
    seen.unwrap()
}

/// Runs one fault.
///
/// A busy machine may make a decision slow, so that is tried again. What a stack waits for by itself is there at each try.
async fn row((name, fault, expected): (&str, Fault, &str)) -> Row {
    let mut tries_left = 5;
    loop {
        let seen = seen(fault).await;
        let during = seen.iter().map(|observed| observed.during.to_string());
        let found = during.collect::<Vec<_>>().join(" | ");
        let cells = || found.split(" | ").zip(expected.split(" | "));
        let is_right = |(found, expected): (&str, &str)| match expected.strip_prefix(EITHER) {
            Some(rest) => found == format!("Ok{rest}") || found == format!("Slow{rest}"),
            None => found == expected,
        };
        let is_expected = cells().all(is_right);
        // Late calls open the breaker of the third stack.
        let late = |(stack, cell): (usize, (&str, &str))| {
            let opens = stack == 2 && cell.0 == "Err unavailable";
            !is_right(cell) && (cell.0.starts_with("Slow") || cell.0 == "Err timeout" || opens)
        };
        let is_late = is_expected || cells().enumerate().any(late);
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
        let afterwards = match fault {
            Redis(fault) if fault.loses_data() => "lost units can be admitted again",
            _ => "nothing is lost",
        };
        return (format!("| {name} | {expected} | {afterwards} |\n"), wrong);
    }
}

const HEAD: &str = "\
| fault | plain | timeout | breaker | fail open | fail closed | fallback | recommended | afterwards |
|---|---|---|---|---|---|---|---|---|
";

/// The rows of all faults. Every `THREADS`th runs on one thread.
fn rows() -> Vec<Row> {
    // They wait more than they compute.
    const THREADS: usize = 3;
    let run = |fault| {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(row(fault))
    };
    let of_redis = OF_REDIS.map(|(name, fault, seen)| (name, Redis(fault), seen));
    let of_cluster = OF_CLUSTER.map(|(name, fault, seen)| (name, Cluster(fault), seen));
    let of_postgres = OF_POSTGRES.map(|(name, fault, seen)| (name, Postgres(fault), seen));
    let faults = [&of_redis[..], &of_cluster, &of_postgres].concat();
    let part = |first| {
        let faults = faults.iter().enumerate().skip(first).step_by(THREADS);
        let rows = faults.map(|(number, fault)| (number, run(*fault)));
        rows.collect::<Vec<_>>()
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
    let (redis, postgres) = rows.split_at(OF_REDIS.len() + OF_CLUSTER.len());
    let document = fs::read_to_string(path).unwrap();
    let mut parts = document.split(HEAD);
    let mut text = parts.next().unwrap().to_owned();
    for rows in [redis, postgres] {
        let (_, after) = parts.next().unwrap().split_once("\n\n").unwrap();
        text += &format!("{HEAD}{}\n{after}", rows.concat());
    }
    assert!(parts.next().is_none(), "docs/faults.md has two such tables");
    if std::env::var_os("LIMITER_RENDER").is_some() {
        fs::write(path, text).unwrap();
    } else {
        let command = "LIMITER_RENDER=1 cargo test -p limiter-wrappers --test faults";
        assert!(document == text, "docs/faults.md differs: {command}");
    }
}

/// Runs new stacks through some faults of Redis, one after the other.
async fn seen_in_turn(faults: &[RedisFault]) -> Vec<Observed> {
    let mut scene = RedisScene::start().unwrap();
    let subjects = stacks(&scene.url()).await;
    let inject = |during: &mut dyn FnMut()| {
        for fault in faults {
            fault.inject(&mut scene, during)?;
            during();
        }
        Ok(scene.server.url())
    };
    observe(&subjects, false, inject, direct).await.unwrap()
}

/// Returns the faults of Redis that lose nothing.
fn lossless() -> Vec<RedisFault> {
    let faults = OF_REDIS.into_iter().map(|(_, fault, _)| fault);
    faults.filter(|fault| !fault.loses_data()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn random_faults_in_turn(faults in vec(select(lossless()), if test_all() { 8 } else { 3 })) {
        let _alone = alone();
        for observed in Runtime::new().unwrap().block_on(seen_in_turn(&faults)) {
            let mut violations = observed.violations.iter();
            let is_right = violations.all(|violation| violation.starts_with(LATE_CALLS));
            prop_assert!(is_right, "{observed:?}");
        }
    }
}
