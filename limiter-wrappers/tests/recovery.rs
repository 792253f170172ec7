//! How soon Redis decides again on a busy key after a stop. Prints what it measures.
//!
//! `LIMITER_TEST_ALL=1` tries more stops.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Limiter, SharedStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;
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

/// A call: when it began, whether Redis decided, and how long it took.
type Call = (Instant, bool, Duration);

/// Loads one key while the server stops for a while. Returns when the stop ended, and the calls by when they began.
async fn load(server: &Server, store: SharedStore, stop: Duration) -> (Instant, Vec<Call>) {
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
fn recovery(resumed: Instant, calls: &[Call]) -> Option<Duration> {
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
