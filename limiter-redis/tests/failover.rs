//! What a failover to a replica loses, with and without `WAIT` and `min-replicas-to-write`. Renders a table of docs/operations.md.
//!
//! It measures, so it runs in a test program that runs nothing else. `LIMITER_TEST_ALL=1` loads each setting for longer, and adds
//! some.

use std::fmt::Write;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::{Limiter, policy};
use limiter_redis::{Connection, RedisStore};
use limiter_testkit::server::{Server, until};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Client, Cmd, Pipeline, RedisError, RedisFuture, Value};
use testbed::{Network, Proxy, test_all};

const TASKS: usize = 16;
/// Longer than anything takes on a busy test machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn is_full() -> bool {
    test_all() || std::env::var_os("LIMITER_RENDER").is_some()
}

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
    /// The admissions that no replica can have received.
    unreplicated: usize,
    /// Admissions per second before the network or the master failed.
    rate: f64,
}

impl Measured {
    fn row(&self, delay: Duration, setting: Setting) -> String {
        let mut times: Vec<Duration> = self.admitted.iter().map(|(.., took)| *took).collect();
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64() * 1e3;
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
        let lost_millis = *lost as f64 / rate * 1e3;
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
    until("the replica is in sync", || {
        let sees = |server: &Server, text| server.info("replication").unwrap().contains(text);
        Ok(sees(&replica, "master_link_status:up") && sees(&master, "state=online"))
    })
    .unwrap();
    link.set(Network::Latency(delay));
    if let Setting::CutOffWithMinReplicas(_) = setting {
        master.expect_ok(&["CONFIG", "SET", "min-replicas-max-lag", "1"]).unwrap();
        master.expect_ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    }
    let load = Arc::new(Load::default());
    let mut connections = Vec::new();
    match setting {
        Setting::Wait(count) => {
            let client = Client::open(master.url()).unwrap();
            for _ in 0..count {
                connections.push(Connection::new(Waiting(client.get_multiplexed_async_connection().await.unwrap())));
            }
        }
        _ => connections.push(Client::open(master.url()).unwrap().get_connection_manager().await.unwrap().into()),
    }
    let builder = RedisStore::builder().response_timeout(TIMEOUT).retries(0);
    let stores =
        connections.into_iter().map(|connection| Arc::new(builder.clone().with_connection(connection).unwrap()));
    let stores: Vec<_> = stores.collect();
    let begun = Instant::now();
    let tasks: Vec<_> =
        stores.iter().cycle().take(TASKS).map(|store| tokio::spawn(load.clone().run(store.clone()))).collect();
    tokio::time::sleep(Duration::from_millis(if is_full() { 800 } else { 100 })).await;
    until("a hundred admissions", || Ok(load.admitted.load(Ordering::Relaxed) > 100)).unwrap();
    let mut ended = Instant::now();
    if let Setting::CutOff(length) | Setting::CutOffWithMinReplicas(length) = setting {
        link.set(Network::HalfOpen);
        tokio::time::sleep(length).await;
        if let Setting::CutOffWithMinReplicas(_) = setting {
            until("the master refuses", || Ok(load.refused.load(Ordering::Relaxed))).unwrap();
        }
    }
    // What is on the way is lost with it.
    drop(link);
    master.kill();
    if !matches!(setting, Setting::CutOff(_) | Setting::CutOffWithMinReplicas(_)) {
        ended = Instant::now();
    }
    load.over.store(true, Ordering::Relaxed);
    replica.expect_ok(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let store = builder.connect(&replica.url()).await.unwrap();
    let held = Limiter::new("load", policy!("10000000/1h"), store).peek("key").await.unwrap().used();
    let admitted: Vec<Admitted> = join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
    let count = |is: &dyn Fn(&Admitted) -> bool| admitted.iter().filter(|one| is(one)).count();
    let lost = count(&|(number, ..)| *number > held);
    // What began later than this was executed later, and was still on its way.
    let unreplicated = count(&|(_, at, took)| *at - *took + delay > ended);
    let before = count(&|(_, at, _)| *at < ended);
    Measured { lost, unreplicated, rate: before as f64 / (ended - begun).as_secs_f64(), admitted }
}

/// What the tasks have in common that acquire until it is over.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    admitted: AtomicUsize,
    /// Whether one got an error.
    refused: AtomicBool,
}

impl Load {
    /// Nothing expires meanwhile, so the usage numbers the admissions.
    async fn run(self: Arc<Self>, store: Arc<RedisStore>) -> Vec<Admitted> {
        let limiter = Limiter::new("load", policy!("10000000/1h"), store);
        let mut admitted = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            match limiter.acquire("key").await {
                Ok(decision) => {
                    admitted.push((decision.used(), Instant::now(), begun.elapsed()));
                    self.admitted.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    self.refused.store(true, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        admitted
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_what_no_replica_has_confirmed() {
    let (near, far) = (Duration::from_millis(1), Duration::from_millis(20));
    let cut = if is_full() { Duration::from_secs(4) } else { Duration::from_millis(200) };
    let mut rows = String::new();
    for (delay, setting, always) in [
        (near, Setting::Asynchronous, false),
        (far, Setting::Asynchronous, true),
        (near, Setting::CutOff(cut), true),
        (near, Setting::CutOffWithMinReplicas(cut), true),
        (near, Setting::Wait(1), false),
        (near, Setting::Wait(TASKS), true),
        (far, Setting::Wait(TASKS), false),
    ] {
        if !always && !is_full() {
            continue;
        }
        let measured = measure(delay, setting).await;
        let row = measured.row(delay, setting);
        print!("{row}");
        match setting {
            Setting::Wait(_) => assert_eq!(measured.lost, 0, "{row}"),
            _ => assert!(measured.lost >= measured.unreplicated, "{} without a replica: {row}", measured.unreplicated),
        }
        if let Setting::CutOff(_) | Setting::CutOffWithMinReplicas(_) = setting {
            assert!(measured.unreplicated > 0, "{row}");
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
