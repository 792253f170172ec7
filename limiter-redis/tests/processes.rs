//! Eight processes of eight tasks each on the same keys: exact at one point in time, and in any window of running time.
//!
//! Every test is run again by its own child processes, which do the work and report it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use limiter_core::{Decision, Limiter, Policy, Timestamp};
use limiter_redis::RedisStore;
use limiter_testkit::server::{Cluster, Server};

use workers::Worker;

mod common;
mod workers;

const PROCESSES: usize = 8;
const TASKS: u64 = 8;
/// How long the work in running time lasts.
const RUNNING: Duration = Duration::from_millis(2_500);

/// Runs all tasks at once.
fn work<F, Fut>(worker: &Worker, policy: &str, task: F)
where
    F: Fn(Arc<Limiter<RedisStore>>, u64) -> Fut,
    Fut: Future<Output = Vec<String>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = common::connect(&worker.url).await;
        let limiter = Arc::new(Limiter::new("search", policy.parse::<Policy>().unwrap(), store));
        worker.wait_for_all();
        let tasks: Vec<_> =
            (0..TASKS).map(|i| tokio::spawn(task(limiter.clone(), worker.number * TASKS + i))).collect();
        for task in tasks {
            for line in task.await.unwrap() {
                worker.report(line);
            }
        }
    });
}

/// The numbers of a reported line.
fn numbers<const N: usize>(line: &str) -> [u64; N] {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// All tasks ask for 1, 2 or 3 units of every key at one point in time, until there must be none left.
fn frozen(test: &str, url: impl FnOnce() -> (String, Box<dyn Send>), keys: u64, max: u64, rounds: u64) {
    let policy = format!("{max}/60s");
    let at = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
    if let Some(worker) = Worker::of_this_process() {
        work(&worker, &policy, |limiter, task| async move {
            let mut taken = vec![0; keys as usize];
            let mut denied = vec![0; keys as usize];
            for round in 0..rounds {
                for key in 0..keys {
                    // No two tasks go through the keys in the same order.
                    let key = (key * 7 + task * 13) % keys;
                    let cost = (round + task) % 3 + 1;
                    let name = format!("key {key}");
                    let decision = limiter.acquire(&name).cost(cost).at(at).await.unwrap();
                    assert_eq!(decision.at(), at);
                    if decision.allowed() {
                        taken[key as usize] += cost;
                    } else if cost == 1 {
                        denied[key as usize] += 1;
                    }
                }
            }
            (0..keys as usize).map(|key| format!("{key} {} {}", taken[key], denied[key])).collect()
        });
        return;
    }
    let (url, _servers) = url();
    let mut total: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for line in workers::run(test, PROCESSES, &url) {
        let [key, taken, denied] = numbers(&line);
        let sum = total.entry(key).or_default();
        *sum = (sum.0 + taken, sum.1 + denied);
    }
    assert_eq!(total.len() as u64, keys);
    for (key, (taken, denied)) in total {
        assert!(denied > 0, "key {key}: a single unit was never too much");
        assert_eq!(taken, max, "key {key}");
    }
}

/// All tasks ask again and again for a while, at the server's time.
fn running(test: &str, url: impl FnOnce() -> (String, Box<dyn Send>), keys: u64, max: usize, window: Duration) {
    let policy = format!("{max}/{}ms", window.as_millis());
    if let Some(worker) = Worker::of_this_process() {
        work(&worker, &policy, |limiter, task| async move {
            let (until, mut log, mut turn) = (Instant::now() + RUNNING, Vec::new(), task);
            while Instant::now() < until {
                let key = turn * 31 % keys;
                turn += 1;
                let before = Timestamp::try_from(SystemTime::now()).unwrap();
                let decision = limiter.acquire(&format!("key {key}")).await.unwrap();
                let after = Timestamp::try_from(SystemTime::now()).unwrap();
                assert_within(&decision, before, after);
                log.push(format!("{key} {} {}", u8::from(decision.allowed()), decision.at().as_micros()));
            }
            log
        });
        return;
    }
    let (url, _servers) = url();
    let mut admitted: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut denied: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for line in workers::run(test, PROCESSES, &url) {
        let [key, allowed, at] = numbers(&line);
        if allowed == 1 {
            admitted.entry(key).or_default().push(at);
        } else {
            denied.entry(key).or_default().insert(at);
        }
    }
    assert_eq!((admitted.len() as u64, denied.len() as u64), (keys, keys), "every key was admitted and denied");
    let window = window.as_micros() as u64;
    for (key, times) in &mut admitted {
        times.sort_unstable();
        let within =
            |from: u64, to: u64| times.partition_point(|at| *at <= to) - times.partition_point(|at| *at < from);
        for at in &*times {
            let count = within(*at, at + window - 1);
            assert!(count <= max, "key {key}: {count} admitted within a window from {at} on");
        }
        for at in &denied[key] {
            let count = within(at - (window - 1), *at);
            assert_eq!(count, max, "key {key}: denied at {at}");
        }
        assert!(times.len() >= 2 * max, "key {key}: {} admitted in {RUNNING:?}", times.len());
    }
}

/// The server's clock is this machine's, which may be adjusted a little.
fn assert_within(decision: &Decision, before: Timestamp, after: Timestamp) {
    let (at, slack) = (decision.at(), Duration::from_millis(100));
    assert!(at.saturating_add(slack) >= before && at <= after.saturating_add(slack), "{at:?}: {before:?} to {after:?}");
}

fn one_redis() -> (String, Box<dyn Send>) {
    let server = Server::start().unwrap();
    (server.url(), Box::new(server))
}

fn a_cluster() -> (String, Box<dyn Send>) {
    let cluster = Cluster::start().unwrap();
    (cluster.url(), Box::new(cluster))
}

#[test]
fn one_key_on_redis_in_frozen_time() {
    frozen("one_key_on_redis_in_frozen_time", one_redis, 1, 600, 30);
}

#[test]
fn a_hundred_keys_on_redis_in_frozen_time() {
    frozen("a_hundred_keys_on_redis_in_frozen_time", one_redis, 100, 40, 3);
}

#[test]
fn one_key_on_a_cluster_in_frozen_time() {
    frozen("one_key_on_a_cluster_in_frozen_time", a_cluster, 1, 600, 30);
}

#[test]
fn a_hundred_keys_on_a_cluster_in_frozen_time() {
    frozen("a_hundred_keys_on_a_cluster_in_frozen_time", a_cluster, 100, 40, 3);
}

#[test]
fn one_key_on_redis_in_running_time() {
    running("one_key_on_redis_in_running_time", one_redis, 1, 50, Duration::from_millis(200));
}

#[test]
fn a_hundred_keys_on_redis_in_running_time() {
    running("a_hundred_keys_on_redis_in_running_time", one_redis, 100, 2, Duration::from_millis(600));
}

#[test]
fn one_key_on_a_cluster_in_running_time() {
    running("one_key_on_a_cluster_in_running_time", a_cluster, 1, 50, Duration::from_millis(200));
}

#[test]
fn a_hundred_keys_on_a_cluster_in_running_time() {
    running("a_hundred_keys_on_a_cluster_in_running_time", a_cluster, 100, 2, Duration::from_millis(600));
}
