//! What a failover to a replica loses, with and without `WAIT` and `min-replicas-to-write`. Renders a table of docs/operations.md.
//!
//! These tests measure, so they run one after the other, in a test program that runs nothing else.

use std::fmt::Write;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::{Limiter, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Client, Cmd, Pipeline, RedisError, RedisFuture, Value};
use testbed::{Network, Proxy, alone};

use common::{builder, connect};

mod common;

const TASKS: usize = 16;
const LOAD: Duration = Duration::from_millis(800);

/// A connection that confirms a write only once a replica has it. Nothing else passes the connection meanwhile.
#[derive(Clone)]
struct Waiting(MultiplexedConnection);

impl ConnectionLike for Waiting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline.add_command(cmd.clone()).cmd("WAIT").arg(1).arg(1000);
            let mut replies = self.0.req_packed_commands(&pipeline, 0, 2).await?;
            match (replies.pop(), replies.pop()) {
                (Some(Value::Int(1..)), Some(reply)) => Ok(reply),
                // The store repeats the operation with the same id, or returns the error.
                _ => Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))),
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// How a store confirms.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    Asynchronous,
    /// With this number of connections.
    Wait(usize),
    /// Cut off from its replica for so long before it dies.
    CutOff(Duration),
    /// Cut off as well, with `min-replicas-to-write 1` and `min-replicas-max-lag 1`.
    CutOffWithMinReplicas(Duration),
}

/// An admission: its number in the log, when it was answered, and how long the call took.
type Admitted = (u64, Instant, Duration);

struct Measured {
    admitted: Vec<Admitted>,
    lost: usize,
    /// Admissions per second before the network or the master failed.
    rate: f64,
}

impl Measured {
    fn lost_seconds(&self) -> f64 {
        self.lost as f64 / self.rate
    }

    fn row(&self, delay: Duration, setting: Setting) -> String {
        let mut times: Vec<Duration> = self.admitted.iter().map(|(.., took)| *took).collect();
        times.sort_unstable();
        let median = times[times.len() / 2].as_secs_f64() * 1e3;
        let setting = match setting {
            Setting::Asynchronous => "asynchronous".to_owned(),
            Setting::Wait(1) => "`WAIT 1`, one connection".to_owned(),
            Setting::Wait(connections) => format!("`WAIT 1`, {connections} connections"),
            Setting::CutOff(length) => format!("asynchronous, cut off for {} s before it dies", length.as_secs()),
            Setting::CutOffWithMinReplicas(length) => {
                format!("the same, with `min-replicas-to-write 1`, `min-replicas-max-lag 1`; {} s", length.as_secs())
            }
        };
        let Self { rate, lost, .. } = self;
        let lost_millis = self.lost_seconds() * 1e3;
        let delay = delay.as_millis();
        format!("| {setting} | {delay} ms | {rate:.0} | {median:.1} ms | {lost} | {lost_millis:.1} ms |\n")
    }
}

/// Loads a master with a replica behind a network with this delay each way, kills the master with everything that is on the
/// way, promotes the replica, and counts the admissions that it does not hold.
async fn measure(delay: Duration, setting: Setting) -> Measured {
    let mut master = Server::start_with(&["--repl-diskless-sync-delay", "0"]).unwrap();
    let link = Proxy::start(([127, 0, 0, 1], master.port()).into()).unwrap();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &link.address().port().to_string()]).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !replica.info("replication").unwrap().contains("master_link_status:up") {
        assert!(Instant::now() < until, "the replica does not catch up");
        std::thread::sleep(Duration::from_millis(20));
    }
    link.set(Network::Latency(delay));
    if let Setting::CutOffWithMinReplicas(_) = setting {
        master.expect_ok(&["CONFIG", "SET", "min-replicas-max-lag", "1"]).unwrap();
        master.expect_ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    }
    let over = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let mut tasks = Vec::new();
    match setting {
        Setting::Wait(connections) => {
            let client = Client::open(master.url()).unwrap();
            let mut stores = Vec::new();
            for _ in 0..connections {
                let connection = Waiting(client.get_multiplexed_async_connection().await.unwrap());
                stores.push(Arc::new(builder().with_connection(connection).unwrap()));
            }
            let stores = stores.iter().cycle().take(TASKS);
            tasks.extend(stores.map(|store| tokio::spawn(load(Arc::clone(store), Arc::clone(&over)))));
        }
        _ => {
            let store = RedisStore::builder().retries(0).connect(&master.url()).await.unwrap();
            let store = Arc::new(store);
            tasks.extend((0..TASKS).map(|_| tokio::spawn(load(Arc::clone(&store), Arc::clone(&over)))));
        }
    }
    tokio::time::sleep(LOAD).await;
    if let Setting::CutOff(length) | Setting::CutOffWithMinReplicas(length) = setting {
        link.set(Network::HalfOpen);
        tokio::time::sleep(length).await;
    }
    link.set(Network::Reset);
    master.kill();
    over.store(true, Ordering::Relaxed);
    replica.expect_ok(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let held = Limiter::new("load", policy!("10000000/1h"), connect(&replica.url()).await);
    let held = held.peek("key").await.unwrap().used();
    let admitted: Vec<Admitted> = join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
    let lost = admitted.iter().filter(|(number, ..)| *number > held).count();
    let before = admitted.iter().filter(|(_, at, _)| *at < begun + LOAD).count();
    Measured { admitted, lost, rate: before as f64 / LOAD.as_secs_f64() }
}

/// Acquires until `over`. Nothing expires meanwhile, so the usage numbers the admissions.
async fn load<C>(store: Arc<RedisStore<C>>, over: Arc<AtomicBool>) -> Vec<Admitted>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let limiter = Limiter::new("load", policy!("10000000/1h"), store);
    let mut admitted = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match limiter.acquire("key").await {
            Ok(decision) => admitted.push((decision.used(), Instant::now(), begun.elapsed())),
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_what_no_replica_has_confirmed() {
    let _alone = alone();
    let (near, far, cut) = (Duration::from_millis(1), Duration::from_millis(20), Duration::from_secs(4));
    let mut rows = String::new();
    for (delay, setting) in [
        (near, Setting::Asynchronous),
        (far, Setting::Asynchronous),
        (near, Setting::CutOff(cut)),
        (near, Setting::CutOffWithMinReplicas(cut)),
        (near, Setting::Wait(1)),
        (near, Setting::Wait(TASKS)),
        (far, Setting::Wait(TASKS)),
    ] {
        let measured = measure(delay, setting).await;
        let row = measured.row(delay, setting);
        print!("{row}");
        let lost_seconds = measured.lost_seconds();
        match setting {
            Setting::Asynchronous => assert!(delay == near || measured.lost > 0, "{row}"),
            Setting::Wait(_) => assert_eq!(measured.lost, 0, "{row}"),
            Setting::CutOff(_) => assert!(lost_seconds > 2.0, "{row}"),
            // Redis checks once a second whether a replica is late.
            Setting::CutOffWithMinReplicas(_) => assert!(measured.lost > 0 && lost_seconds < 4.0, "{row}"),
        }
        rows += &row;
    }
    if std::env::var_os("LIMITER_RENDER").is_some() {
        let info = Server::start().unwrap().info("server").unwrap();
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or_default();
        let threads = std::thread::available_parallelism().unwrap();
        render(&format!("Redis {}, load and servers on {threads} hardware threads:\n", version.trim()), &rows);
    }
}

/// Writes the table between its marks in docs/operations.md.
fn render(machine: &str, rows: &str) {
    const BEGIN: &str =
        "<!-- failover: written by `LIMITER_RENDER=1 cargo test --release -p limiter-redis --test failover` -->\n";
    const END: &str = "<!-- end of failover -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let text = fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut out = format!("{before}{BEGIN}\n{machine}\n");
    let _ = writeln!(out, "| replication | delay each way | decisions/s | median | lost units | decisions of |");
    let _ = writeln!(out, "|---|---:|---:|---:|---:|---:|");
    let _ = write!(out, "{rows}\n{END}{after}");
    fs::write(path, out).unwrap();
}
