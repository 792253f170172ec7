//! How soon Redis decides again on a busy key after a stop, whether the masters of a Cluster decide while one is lost, and how many
//! outages a Redis has that refuses writes. Prints what it measures.
//!
//! `LIMITER_TEST_ALL=1` tries more stops.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Limiter, SharedStore, policy};
use limiter_redis::RedisStore;
use limiter_wrappers::Guarded;
use testbed::server::{Cluster, Server, until};
use testbed::{alone, test_all};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// How long a store may take to recover. A machine that is busy elsewhere needs some of it.
const WATCHED: Duration = Duration::from_secs(4);
/// Recovered is what succeeds for so long.
const STEADY: Duration = Duration::from_millis(300);

/// The keys of each master.
const KEYS: usize = 50;
/// How long a master is lost.
const LOST: Duration = Duration::from_secs(2);

/// A call: when it began, the index of its key, whether Redis decided, and how long it took.
type Sample = (Instant, usize, bool, Duration);

/// Makes some calls each millisecond, on each key in turn, until `end` returns. Returns its result, and the calls by when they began.
async fn load<T>(
    limiter: &Limiter,
    keys: &[String],
    rate: usize,
    end: impl Future<Output = T>,
) -> (T, Vec<Sample>) {
    let mut calls = JoinSet::new();
    let generate = async {
        let mut ticks = interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for n in 0.. {
            if n % rate == 0 {
                ticks.tick().await;
            }
            let index = n % keys.len();
            let limiter = limiter.clone();
            let key = keys[index].clone();
            calls.spawn(async move {
                let begun = Instant::now();
                (
                    begun,
                    index,
                    limiter.acquire(&key).await.is_ok(),
                    begun.elapsed(),
                )
            });
        }
    };
    let ended = tokio::select! {
        ended = end => ended,
        () = generate => unreachable!("the load has no end"),
    };
    let mut all = calls.join_all().await;
    all.sort_unstable();
    (ended, all)
}

/// Returns how long after `resumed` a time begins in which nine of ten calls succeed.
fn recovery(resumed: Instant, calls: &[Sample]) -> Option<Duration> {
    let last = calls.last()?.0;
    let mut starts = (0..)
        .map(|n| resumed + n * STEADY / 30)
        .take_while(|start| *start + STEADY <= last);
    let is_steady = |start: &Instant| {
        let within = calls
            .iter()
            .filter(|(begun, ..)| (*start..*start + STEADY).contains(begun));
        let (decided, failed): (Vec<&Sample>, Vec<&Sample>) =
            within.partition(|(_, _, decided, _)| *decided);
        decided.len() >= 9 * failed.len().max(1)
    };
    starts.find(is_steady).map(|start| start - resumed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_key_recovers_from_a_stop() {
    let _alone = alone();
    let stops: &[u64] = if test_all() { &[300, 1_500] } else { &[600] };
    println!("store | stop | calls | failed after the stop | recovered after");
    for (name, stop) in ["bare", "stack"]
        .iter()
        .flat_map(|name| stops.iter().map(move |stop| (*name, *stop)))
    {
        let server = Server::start().unwrap();
        let redis = RedisStore::connect(&server.url()).await.unwrap();
        let store: SharedStore = if name == "stack" {
            Arc::new(Guarded::builder(redis).or_error())
        } else {
            Arc::new(redis)
        };
        let limiter = Limiter::new("busy", policy!("1000000/1m"), store);
        let stops = async {
            sleep(Duration::from_millis(500)).await;
            server.pause().unwrap();
            sleep(Duration::from_millis(stop)).await;
            server.resume().unwrap();
            let resumed = Instant::now();
            sleep(WATCHED).await;
            resumed
        };
        let (resumed, calls) = load(&limiter, &["key".to_owned()], 3, stops).await;
        let failed = calls
            .iter()
            .filter(|(begun, _, decided, _)| *begun >= resumed && !decided)
            .count();
        let recovered = recovery(resumed, &calls);
        println!(
            "{name} | {stop} ms | {} | {failed} | {recovered:?}",
            calls.len()
        );
        assert!(
            recovered.is_some(),
            "{name}: not within {WATCHED:?} of a stop of {stop} ms"
        );
    }
}

/// Returns keys of the limiter `lost`, in turn one of each master.
fn keys_by_master(cluster: &Cluster) -> Vec<String> {
    let mut keys = vec![Vec::new(); cluster.nodes().len()];
    for key in (0..).map(|n| format!("key {n}")) {
        let slot = cluster.nodes()[0]
            .command(&["CLUSTER", "KEYSLOT", &format!("lost:{key}")])
            .unwrap();
        let owner = cluster.owner(slot).unwrap().port();
        keys[cluster
            .nodes()
            .iter()
            .position(|node| node.port() == owner)
            .unwrap()]
        .push(key);
        if keys.iter().all(|keys| keys.len() >= KEYS) {
            break;
        }
    }
    (0..KEYS)
        .flat_map(|n| keys.iter().map(move |keys| keys[n].clone()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_masters_that_live_decide_while_one_is_lost() {
    let _alone = alone();
    println!(
        "first master | calls to the others | decided by Redis | p99 | calls to the first | decided by Redis"
    );
    for is_killed in [true, false] {
        let mut cluster = Cluster::start().unwrap();
        for node in cluster.nodes() {
            // Otherwise the others refuse all calls as soon as they notice.
            node.command::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"])
                .unwrap();
        }
        let keys = keys_by_master(&cluster);
        let store = Guarded::builder(RedisStore::connect(&cluster.url()).await.unwrap()).or_error();
        let limiter = Limiter::new(
            "lost",
            policy!("1000000/1m"),
            Arc::new(store) as SharedStore,
        );
        for key in &keys {
            while limiter.acquire(key).await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        }
        if is_killed {
            cluster.nodes_mut()[0].kill();
        } else {
            cluster.nodes()[0].pause().unwrap();
        }
        let ((), calls) = load(&limiter, &keys, 1, sleep(LOST)).await;
        if !is_killed {
            cluster.nodes()[0].resume().unwrap();
        }
        let masters = cluster.nodes().len();
        let (first, others): (Vec<&Sample>, Vec<&Sample>) =
            calls.iter().partition(|(_, key, ..)| key % masters == 0);
        let decided =
            |calls: &[&Sample]| calls.iter().filter(|(_, _, decided, _)| *decided).count();
        let mut took: Vec<Duration> = others.iter().map(|(.., took)| *took).collect();
        took.sort_unstable();
        let name = if is_killed { "killed" } else { "stopped" };
        let p99 = took[took.len() * 99 / 100];
        let by_first = decided(&first);
        let by_others = decided(&others);
        println!(
            "{name} | {} | {by_others} | {p99:?} | {} | {by_first}",
            others.len(),
            first.len()
        );
        assert!(
            100 * by_others >= 99 * others.len() && by_first == 0,
            "{name}: {by_others} and {by_first} decided"
        );
    }
}

/// A Redis that refuses writes and responds to reads, because its memory is full or because it cannot save.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Oom,
    Misconf,
}

impl Refusal {
    fn begin(self, server: &Server) {
        let send = |words: &[&str]| server.command::<()>(words).unwrap();
        match self {
            Self::Oom => send(&["CONFIG", "SET", "maxmemory", "1"]),
            Self::Misconf => {
                // A save cannot replace a folder.
                fs::create_dir(server.socket().with_file_name("dump.rdb")).unwrap();
                send(&["CONFIG", "SET", "save", "3600 1000000"]);
                Self::save(server, "err");
            }
        }
    }

    fn end(self, server: &Server) {
        match self {
            Self::Oom => server
                .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
                .unwrap(),
            Self::Misconf => {
                fs::remove_dir(server.socket().with_file_name("dump.rdb")).unwrap();
                Self::save(server, "ok");
            }
        }
    }

    fn save(server: &Server, status: &str) {
        server.command::<()>(&["BGSAVE"]).unwrap();
        let status = format!("rdb_last_bgsave_status:{status}");
        until("the save ends", || {
            let info = server.info("persistence")?;
            Ok(info.contains("rdb_bgsave_in_progress:0") && info.contains(&status))
        })
        .unwrap();
    }
}

/// Reads succeed all the time, for longer than they must before an outage is over.
#[tokio::test]
async fn refused_writes_are_one_outage() {
    for refusal in [Refusal::Oom, Refusal::Misconf] {
        let server = Server::start().unwrap();
        let redis = RedisStore::connect(&server.url()).await.unwrap();
        let store = Guarded::builder(redis).or_error();
        let limiter = Limiter::new("refused", policy!("3/1h"), store.clone());
        let read = async |rounds: usize| {
            for _ in 0..rounds {
                let _ = limiter.status("full").await;
                sleep(Duration::from_millis(50)).await;
            }
        };
        for _ in 0..3 {
            assert!(limiter.acquire("full").await.unwrap().is_allowed());
        }
        refusal.begin(&server);
        for round in 0..3 {
            let error = limiter.acquire("key").await.unwrap_err();
            assert!(error.is_retryable(), "{refusal:?}, {round}: {error}");
            read(26).await;
            assert!(limiter.status("full").await.is_ok());
            // A denial is a read.
            assert!(!limiter.acquire("full").await.unwrap().is_allowed());
            assert_eq!(
                (store.in_outage(), store.outages()),
                (true, 1),
                "{refusal:?}, {round}"
            );
        }
        refusal.end(&server);
        assert!(limiter.acquire("key").await.unwrap().is_allowed());
        while store.in_outage() {
            read(1).await;
        }
        assert!(limiter.acquire("key").await.unwrap().is_allowed());
        assert_eq!(
            (store.in_outage(), store.outages()),
            (false, 1),
            "{refusal:?}"
        );
    }
}
