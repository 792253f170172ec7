//! How soon Redis decides again on a busy key after a stop, and whether the masters of a Cluster decide while one is lost. Prints
//! what it measures.
//!
//! `LIMITER_TEST_ALL=1` tries more stops.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use limiter_core::{Limiter, SharedStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::{Cluster, Server};
use limiter_wrappers::Stack;
use testbed::{alone, test_all};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Calls in a millisecond.
const RATE: usize = 3;
const BEFORE: Duration = Duration::from_secs(1);
/// How long a store may take to recover. A machine that is busy elsewhere needs some of it.
const WATCHED: Duration = Duration::from_secs(8);
/// Recovered is what succeeds for so long.
const STEADY: Duration = Duration::from_millis(300);

/// The keys of each master.
const KEYS: usize = 50;
/// How long a master is lost.
const LOST: Duration = Duration::from_secs(3);

/// A call: when it began, whether Redis decided, and how long it took.
type Sample = (Instant, bool, Duration);

/// Loads one key while the server stops for a while. Returns when the stop ended, and the calls by when they began.
async fn load(server: &Server, store: SharedStore, stop: Duration) -> (Instant, Vec<Sample>) {
    let limiter = Arc::new(Limiter::new("busy", policy!("1000000/1m"), store));
    let mut calls = JoinSet::new();
    let generate = async {
        let mut ticks = interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            for _ in 0..RATE {
                let limiter = limiter.clone();
                calls.spawn(async move {
                    let begun = Instant::now();
                    (begun, limiter.acquire("key").await.is_ok(), begun.elapsed())
                });
            }
        }
    };
    let stops = async {
        sleep(BEFORE).await;
        server.pause().unwrap();
        sleep(stop).await;
        server.resume().unwrap();
        let resumed = Instant::now();
        sleep(if test_all() { WATCHED } else { WATCHED / 2 }).await;
        resumed
    };
    let resumed = tokio::select! {
        resumed = stops => resumed,
        () = generate => unreachable!("the load has no end"),
    };
    let mut all = calls.join_all().await;
    all.sort_unstable();
    (resumed, all)
}

/// Returns how long after `resumed` a time begins in which nine of ten calls succeed.
fn recovery(resumed: Instant, calls: &[Sample]) -> Option<Duration> {
    let after = calls.iter().filter(|(begun, ..)| *begun >= resumed);
    let failed: Vec<Instant> = after.clone().filter(|(_, decided, _)| !decided).map(|(begun, ..)| *begun).collect();
    let starts = std::iter::once(resumed).chain(failed);
    let last = calls.last()?.0;
    let mut starts = starts.filter(|start| *start + STEADY <= last);
    let steady = starts.find(|start| {
        let within = after.clone().filter(|(begun, ..)| (*start..*start + STEADY).contains(begun));
        let (all, decided) = within.fold((0, 0), |(all, sum), (_, decided, _)| (all + 1, sum + usize::from(*decided)));
        all > 0 && 10 * decided >= 9 * all
    });
    steady.map(|start| start - resumed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_key_recovers_from_a_stop() {
    let _alone = alone();
    let stops: &[u64] = if test_all() { &[300, 600, 1_500] } else { &[600] };
    println!("store | stop | calls/s | failed before | failed after the stop | recovered after");
    for stack in [false, true] {
        for stop in stops {
            let server = Server::start().unwrap();
            let redis = RedisStore::connect(&server.url()).await.unwrap();
            let (name, store): (_, SharedStore) =
                if stack { ("stack", Arc::new(Stack::new(redis).or_error())) } else { ("bare", Arc::new(redis)) };
            let (resumed, calls) = load(&server, store, Duration::from_millis(*stop)).await;
            let stopped = resumed - Duration::from_millis(*stop);
            // A call that began shortly before the stop may fail by it.
            let failed = |from: Instant, to: Instant| {
                calls.iter().filter(|(begun, decided, _)| (from..to).contains(begun) && !decided).count()
            };
            let before = calls.iter().take_while(|(begun, ..)| *begun < stopped).count();
            let recovered = recovery(resumed, &calls);
            println!(
                "{name} | {stop} ms | {before} | {} | {} | {recovered:?}",
                failed(calls[0].0, stopped - BEFORE / 4),
                failed(resumed, resumed + WATCHED),
            );
            assert!(recovered.is_some(), "{name}: not within {WATCHED:?} of a stop of {stop} ms");
        }
    }
}

/// A call that the stack's timeout ends is decided elsewhere, so it must not count when the server goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_timed_out_behind_the_stack_does_not_count() {
    const CALLS: u64 = 20;
    let _alone = alone();
    let server = Server::start().unwrap();
    let direct = RedisStore::builder().response_timeout(WATCHED).connect(&server.url()).await.unwrap();
    let direct = Limiter::new("timed out", policy!("1000000/1h"), direct);
    println!("stop | charged although the call had failed, of {CALLS}");
    for stop in [350, 400, 450, 500] {
        // The deadline is late by the slowest reply, and a busy machine's replies are slow.
        let mut tries = 0..5;
        let charged = loop {
            let redis = RedisStore::connect(&server.url()).await.unwrap();
            let limiter = Limiter::new("timed out", policy!("1000000/1h"), Stack::new(redis).or_error());
            let key = format!("{stop} {tries:?}");
            while limiter.acquire(&key).await.is_err() {}
            let before = direct.peek(&key).await.unwrap().used();
            server.pause().unwrap();
            let calls = join_all((0..CALLS).map(|_| limiter.acquire(&key).into_future()));
            let resume = async {
                sleep(Duration::from_millis(stop)).await;
                server.resume().unwrap();
            };
            let (decided, ()) = tokio::join!(calls, resume);
            let decided = decided.iter().filter(|decision| decision.is_ok()).count() as u64;
            sleep(Duration::from_millis(100)).await;
            let charged = direct.peek(&key).await.unwrap().used() - before - decided;
            if charged == 0 || tries.next().is_none() {
                break charged;
            }
        };
        println!("{stop} ms | {charged}");
        assert_eq!(charged, 0, "after a stop of {stop} ms");
    }
}

/// Returns keys of the limiter `lost`, by the master that serves them.
fn keys_by_master(cluster: &Cluster) -> Vec<Vec<String>> {
    let mut keys = vec![Vec::new(); cluster.nodes().len()];
    for key in (0..).map(|n| format!("key {n}")) {
        let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", &format!("lost:{key}")]).unwrap().int();
        let owner = cluster.owner(u16::try_from(slot).unwrap()).unwrap().port();
        let master = cluster.nodes().iter().position(|node| node.port() == owner).unwrap();
        if keys[master].len() < KEYS {
            keys[master].push(key);
        }
        if keys.iter().all(|keys| keys.len() == KEYS) {
            break;
        }
    }
    keys
}

/// Loads all masters while the first is stopped or killed. Returns the calls to the first, and those to the others.
async fn lose_a_master(killed: bool) -> [Vec<Sample>; 2] {
    let mut cluster = Cluster::start().unwrap();
    for node in cluster.nodes() {
        // Otherwise the others refuse all calls as soon as they notice.
        node.expect_ok(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    }
    let keys = keys_by_master(&cluster);
    let store = Stack::new(RedisStore::connect(&cluster.url()).await.unwrap()).or_error();
    let limiter = Arc::new(Limiter::new("lost", policy!("1000000/1m"), store));
    for key in keys.iter().flatten() {
        while limiter.acquire(key).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    }
    if killed {
        cluster.nodes_mut()[0].kill();
    } else {
        cluster.nodes()[0].pause().unwrap();
    }
    let (mut calls, end) = (JoinSet::new(), Instant::now() + LOST);
    let mut ticks = interval(Duration::from_millis(1));
    for n in 0.. {
        if ticks.tick().await > end {
            break;
        }
        let master = n % keys.len();
        let (limiter, key) = (limiter.clone(), keys[master][n % KEYS].clone());
        calls.spawn(async move {
            let begun = Instant::now();
            (master, (begun, limiter.acquire(&key).await.is_ok(), begun.elapsed()))
        });
    }
    if !killed {
        cluster.nodes()[0].resume().unwrap();
    }
    let (of_first, of_others): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().partition(|call| call.0 == 0);
    [of_first, of_others].map(|calls| calls.into_iter().map(|(_, call)| call).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_masters_that_live_decide_while_one_is_lost() {
    let _alone = alone();
    println!("first master | calls to the others | decided by Redis | p99 | calls to the first | decided by Redis");
    for killed in [true, false] {
        let [of_first, of_others] = lose_a_master(killed).await;
        let decided = |calls: &[Sample]| calls.iter().filter(|(_, decided, _)| *decided).count();
        let mut took: Vec<Duration> = of_others.iter().map(|(.., took)| *took).collect();
        took.sort_unstable();
        println!(
            "{} | {} | {} | {:?} | {} | {}",
            if killed { "killed" } else { "stopped" },
            of_others.len(),
            decided(&of_others),
            took[took.len() * 99 / 100],
            of_first.len(),
            decided(&of_first),
        );
        assert!(100 * decided(&of_others) >= 99 * of_others.len(), "killed: {killed}");
        assert_eq!(decided(&of_first), 0, "killed: {killed}");
    }
}
