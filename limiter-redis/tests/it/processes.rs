//! Eight processes of eight tasks each on the same keys: exact at one point in time, and in any window of running time.
//!
//! Every test is run again by its own child processes, which do the work and report it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use limiter_core::{Limiter, Policy, Timestamp, policy};
use limiter_testkit::server::Server;

use crate::support::{at, connect, search, shared_cluster, size};

const PROCESSES: usize = 8;
const TASKS: u64 = 8;
/// The environment variable with the number of a worker process and the URL of its server.
const WORKER_VARIABLE: &str = "LIMITER_TEST_WORKER";
/// Starts every line that a process reports, because the test harness prints lines too.
const REPORT_PREFIX: &str = "worker:";

/// The plan's and the key's number, whether it is in frozen time, whether it was allowed, the cost, and the time.
type Report = [u64; 6];

/// Runs a test in several processes, which start their work at the same time, and returns what they report.
fn run_workers(test: &str, url: &str) -> Vec<Report> {
    let start = |number: usize| {
        let mut worker = Command::new(std::env::current_exe().unwrap());
        worker.args([test, "--exact", "--nocapture"]).env(WORKER_VARIABLE, format!("{number} {url}"));
        worker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut workers: Vec<Child> = (0..PROCESSES).map(start).collect();
    let mut outputs: Vec<_> = workers.iter_mut().map(|p| BufReader::new(p.stdout.take().unwrap()).lines()).collect();
    for output in &mut outputs {
        assert!(output.any(|line| line.unwrap().ends_with("ready")), "a process did not get ready");
    }
    // Closing its standard input starts a worker.
    workers.iter_mut().for_each(|worker| drop(worker.stdin.take()));
    let numbers = |line: String| {
        let numbers = line.strip_prefix(REPORT_PREFIX)?.split(' ').map(|number| number.parse().unwrap());
        Some(numbers.collect::<Vec<u64>>().try_into().unwrap())
    };
    let reports = outputs.into_iter().flatten().map(Result::unwrap).filter_map(numbers).collect();
    for worker in &mut workers {
        assert!(worker.wait().unwrap().success(), "a process failed");
    }
    reports
}

/// What one test does: `max` units in a window, on this many keys.
#[derive(Clone, Copy)]
struct Plan {
    number: u64,
    keys: u64,
    /// At one point in time, all tasks ask for 1, 2 or 3 units of every key in this many rounds, until there must be none left.
    max: u64,
    rounds: u64,
    /// Then they ask again and again at the server's time, until every key has admitted three times its maximum.
    running: (u64, Duration),
}

impl Plan {
    async fn work(self, url: &str, worker: u64) -> Vec<Report> {
        let (store, (max, window)) = (Arc::new(connect(url).await), self.running);
        let limiter = |name, policy: String| {
            let name = format!("{name} {}", self.number);
            Arc::new(Limiter::new(&*name, policy.parse::<Policy>().unwrap(), store.clone()))
        };
        let frozen = limiter("frozen", format!("{}/60s", self.max));
        let running = limiter("running", format!("{max}/{}ms", window.as_millis()));
        let tasks = (worker * TASKS..(worker + 1) * TASKS).map(|task| {
            let (frozen, running) = (frozen.clone(), running.clone());
            tokio::spawn(async move {
                let mut reports = Vec::new();
                for round in 0..self.rounds {
                    for key in 0..self.keys {
                        // No two tasks go through the keys in the same order.
                        let key = (key * 7 + task * 13) % self.keys;
                        let cost = (round + task) % 3 + 1;
                        let decision = frozen.acquire(key).cost(cost).at(at(0)).await.unwrap();
                        assert_eq!(decision.at(), at(0));
                        reports.push([self.number, key, 1, decision.allowed().into(), cost, 0]);
                    }
                }
                let (begun, mut turn) = (Instant::now(), task);
                while begun.elapsed() < 4 * self.running.1 {
                    let key = turn * 31 % self.keys;
                    turn += 1;
                    let before = Timestamp::try_from(SystemTime::now()).unwrap();
                    let decision = running.acquire(key).await.unwrap();
                    let after = Timestamp::try_from(SystemTime::now()).unwrap();
                    // The server's clock is this machine's, which may be adjusted a little.
                    let (time, slack) = (decision.at(), Duration::from_millis(100));
                    assert!(time.saturating_add(slack) >= before && time <= after.saturating_add(slack), "{time:?}");
                    reports.push([self.number, key, 0, decision.allowed().into(), 1, time.as_micros()]);
                }
                reports
            })
        });
        join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect()
    }

    fn check(self, reports: &[Report]) {
        let mut frozen: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut running: BTreeMap<u64, (Vec<u64>, BTreeSet<u64>)> = BTreeMap::new();
        for &[_, key, is_frozen, allowed, cost, time] in reports.iter().filter(|report| report[0] == self.number) {
            let (taken, denied) = frozen.entry(key).or_default();
            let (times, denials) = running.entry(key).or_default();
            match (is_frozen == 1, allowed == 1) {
                (true, true) => *taken += cost,
                (true, false) => *denied += u64::from(cost == 1),
                (false, true) => times.push(time),
                (false, false) => _ = denials.insert(time),
            }
        }
        assert_eq!(frozen.len() as u64, self.keys);
        for (key, (taken, denied)) in frozen {
            assert!(denied > 0, "key {key}: a single unit was never too much");
            assert_eq!(taken, self.max, "key {key}");
        }
        let (max, window) = (self.running.0 as usize, self.running.1.as_micros() as u64);
        let (mut admitted, mut denied) = (0, 0);
        for (key, (mut times, denials)) in running {
            times.sort_unstable();
            let within =
                |from: u64, to: u64| times.partition_point(|at| *at <= to) - times.partition_point(|at| *at < from);
            for time in &times {
                let count = within(*time, time + window - 1);
                assert!(count <= max, "key {key}: {count} admitted within a window from {time} on");
            }
            for time in &denials {
                assert_eq!(within(time - (window - 1), *time), max, "key {key}: denied at {time}");
            }
            (admitted, denied) = (admitted + times.len(), denied + denials.len());
        }
        assert!(admitted > self.keys as usize * max && denied > 0, "{admitted} admitted, {denied} denied");
    }
}

fn processes_are_exact(test: &str, url: impl FnOnce() -> String) {
    let plans = [
        Plan { number: 0, keys: 100, max: 40, rounds: 3, running: (2, Duration::from_millis(600)) },
        Plan { number: 1, keys: 1, max: 600, rounds: 30, running: (50, Duration::from_millis(size(200, 600))) },
    ];
    if let Ok(work) = std::env::var(WORKER_VARIABLE) {
        let (number, url) = work.split_once(' ').unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // Connections and scripts are there when the work begins.
        runtime.block_on(async {
            search(policy!("9999/1h"), connect(url).await).acquire("warm").await.map(drop).unwrap();
        });
        // The harness prints the name of the test without a line break after it.
        println!("\n{REPORT_PREFIX}ready");
        std::io::stdin().lock().read_line(&mut String::new()).unwrap();
        let worker = number.parse().unwrap();
        // Once all work is done: the parent reads one process after the other.
        for report in plans.map(|plan| runtime.block_on(plan.work(url, worker))).concat() {
            println!("{REPORT_PREFIX}{}", report.map(|number| number.to_string()).join(" "));
        }
        return;
    }
    let reports = run_workers(test, &url());
    plans.iter().for_each(|plan| plan.check(&reports));
}

#[test]
fn processes_on_one_server_are_exact() {
    let server = Server::start().unwrap();
    processes_are_exact("processes::processes_on_one_server_are_exact", || server.url());
}

#[test]
fn processes_on_a_cluster_are_exact() {
    processes_are_exact("processes::processes_on_a_cluster_are_exact", || shared_cluster().url());
}
