//! Eight processes of eight tasks each on the same keys: exact at one point in time, and in any window of running time.
//!
//! Every test is run again by its own child processes, which do the work and report it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use limiter_core::{Limiter, Policy, Timestamp, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

use crate::support::{at, connect, search, shared_cluster, size};

const PROCESSES: usize = 8;
const TASKS: u64 = 8;
/// The environment variable with the number of a worker process and the URL of its server.
const WORKER_VARIABLE: &str = "LIMITER_TEST_WORKER";
/// Starts every line that a process reports, because the test harness prints lines too.
const REPORT_PREFIX: &str = "worker:";

/// The key's number, whether it is in frozen time, whether it was allowed, the cost, and the time.
type Report = [u64; 5];

/// A process that runs one test as a worker. Dropping it kills it.
struct Process(Child, Option<ChildStdin>);

impl Process {
    fn start(test: &str, number: usize, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(WORKER_VARIABLE, format!("{number} {url}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let start = child.stdin.take();
        Self(child, start)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test in several processes, which start their work at the same time, and returns what they report.
fn run_workers(test: &str, url: &str) -> Vec<Report> {
    let mut processes: Vec<Process> = (0..PROCESSES).map(|number| Process::start(test, number, url)).collect();
    let mut outputs: Vec<_> =
        processes.iter_mut().map(|p| BufReader::new(p.0.stdout.take().unwrap()).lines()).collect();
    for output in &mut outputs {
        assert!(output.any(|line| line.unwrap().ends_with("ready")), "a process did not get ready");
    }
    for process in &mut processes {
        process.1.take().unwrap().write_all(b"\n").unwrap();
    }
    let lines = outputs.into_iter().flatten().map(Result::unwrap);
    let numbers = |line: String| {
        let numbers = line.strip_prefix(REPORT_PREFIX)?.split(' ').map(|number| number.parse().unwrap());
        Some(numbers.collect::<Vec<u64>>().try_into().unwrap())
    };
    let reports = lines.filter_map(numbers).collect();
    for process in &mut processes {
        assert!(process.0.wait().unwrap().success(), "a process failed");
    }
    reports
}

/// What one test does: `max` units in a window, on this many keys.
#[derive(Clone, Copy)]
struct Plan {
    keys: u64,
    /// At one point in time, all tasks ask for 1, 2 or 3 units of every key in this many rounds, until there must be none left.
    max: u64,
    rounds: u64,
    /// Then they ask again and again at the server's time, until every key has admitted three times its maximum.
    running: (u64, Duration),
}

impl Plan {
    fn limiters(self, store: RedisStore) -> (Limiter<Arc<RedisStore>>, Limiter<Arc<RedisStore>>) {
        let (store, (max, window)) = (Arc::new(store), self.running);
        let running: Policy = format!("{max}/{}ms", window.as_millis()).parse().unwrap();
        let frozen: Policy = format!("{}/60s", self.max).parse().unwrap();
        let name = |kind| format!("{kind} {}", self.keys);
        (Limiter::new(&*name("frozen"), frozen, store.clone()), Limiter::new(&*name("running"), running, store))
    }

    async fn work(self, url: &str, worker: u64) -> Vec<Report> {
        let (frozen, running) = self.limiters(connect(url).await);
        let (frozen, running) = (Arc::new(frozen), Arc::new(running));
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
                        reports.push([key, 1, decision.allowed().into(), cost, 0]);
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
                    reports.push([key, 0, decision.allowed().into(), 1, time.as_micros()]);
                }
                reports
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut reports = Vec::new();
        for task in tasks {
            reports.extend(task.await.unwrap());
        }
        reports
    }

    fn check(self, reports: &[Report]) {
        let mut frozen: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut running: BTreeMap<u64, (Vec<u64>, BTreeSet<u64>)> = BTreeMap::new();
        for &[key, is_frozen, allowed, cost, time] in reports {
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
    let one = Plan { keys: 1, max: 600, rounds: 30, running: (50, Duration::from_millis(size(200, 600))) };
    let many = Plan { keys: 100, max: 40, rounds: 3, running: (2, Duration::from_millis(600)) };
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
        let mut reports = runtime.block_on(many.work(url, number.parse().unwrap()));
        reports.iter_mut().for_each(|report| report[0] += 1_000);
        reports.extend(runtime.block_on(one.work(url, number.parse().unwrap())));
        // Once all work is done: the parent reads one process after the other.
        for report in reports {
            println!("{REPORT_PREFIX}{}", report.map(|number| number.to_string()).join(" "));
        }
        return;
    }
    let reports = run_workers(test, &url());
    let (mut of_many, of_one): (Vec<Report>, Vec<Report>) = reports.into_iter().partition(|report| report[0] >= 1_000);
    of_many.iter_mut().for_each(|report| report[0] -= 1_000);
    one.check(&of_one);
    many.check(&of_many);
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
