//! A cluster that changes under load: slots that move, masters that die.
//!
//! These tests assert times, so they run one after the other, in a test program that runs nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use limiter_core::{Decision, Error, ErrorKind, Limit, Limiter, Timestamp, policy};
use limiter_redis::{Connection, RedisStore};
use limiter_testkit::server::{Cluster, Server};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_routing::Slot;
use testbed::alone;
use tokio::task::JoinHandle;

/// How long an operation may take with the default timeouts: two attempts of 250 ms and the pauses.
const BOUND: Duration = Duration::from_millis(540);
/// How late a busy machine may notice a timeout.
const SLACK: Duration = Duration::from_millis(250);

/// The name of the limiters of this file.
const NAME: &str = "search";

/// The slot of a key. The hash tag is the name and the key.
fn slot(cluster: &Cluster, key: &str) -> u16 {
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", &format!("{NAME}:{key}")]).unwrap().int();
    u16::try_from(slot).unwrap()
}

/// Keys of this slot.
fn keys_of(wanted: u16, count: usize) -> Vec<String> {
    let wanted = Slot::new(wanted).unwrap();
    let is_wanted = |key: &String| Slot::for_key(format!("{NAME}:{key}")) == wanted;
    (0..).map(|i: u64| format!("key {i}")).filter(is_wanted).take(count).collect()
}

/// What became of the operations of one task.
#[derive(Default)]
struct Tally {
    admitted: u64,
    failed: u64,
    longest: Duration,
}

impl Tally {
    /// Runs one operation. Returns whether it was allowed, or `None` if it failed.
    async fn run(&mut self, operation: impl Future<Output = Result<Decision, Error>>) -> Option<bool> {
        let begun = Instant::now();
        let decision = operation.await;
        self.longest = self.longest.max(begun.elapsed());
        match decision {
            Ok(decision) => {
                self.admitted += u64::from(decision.allowed());
                Some(decision.allowed())
            }
            Err(error) => {
                assert_temporary(&error);
                self.failed += 1;
                None
            }
        }
    }
}

/// The only errors that a cluster in trouble may cause.
fn assert_temporary(error: &Error) {
    let temporary = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) && error.is_retryable();
    assert!(temporary, "{error:?}");
}

fn assert_bounded(longest: Duration) {
    assert!(longest <= BOUND + SLACK, "an operation took {longest:?}");
}

type Work = (Vec<Tally>, BTreeSet<u128>, Tally);

async fn operations_count_once<F>(connect: impl FnOnce(String) -> F)
where
    F: Future<Output = RedisStore>,
{
    const TASKS: u64 = 16;
    const MAX: u64 = 400;
    let cluster = Arc::new(Cluster::start().unwrap());
    let moving = slot(&cluster, "key 0");
    let keys = keys_of(moving, 8);
    let (limited, metered): (Vec<_>, Vec<_>) = (keys[..4].to_vec(), keys[4..].to_vec());
    let at = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
    let store = Arc::new(connect(cluster.url()).await);
    let limiter = Arc::new(Limiter::new(NAME, Limit::per_minute(MAX).unwrap(), store.clone()));
    let meter = Arc::new(Limiter::new(NAME, Limit::meter(Duration::from_secs(60)).unwrap(), store));

    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<JoinHandle<Work>> = (0..TASKS)
        .map(|task| {
            let (limiter, meter, over) = (limiter.clone(), meter.clone(), over.clone());
            let (limited, metered) = (limited.clone(), metered.clone());
            tokio::spawn(async move {
                let mut tallies: Vec<Tally> = limited.iter().map(|_| Tally::default()).collect();
                let (mut ids, mut recorded) = (BTreeSet::new(), Tally::default());
                let mut round = 0;
                while !over.load(Ordering::Relaxed) {
                    for (i, key) in limited.iter().enumerate() {
                        tallies[i].run(limiter.acquire(key).at(at)).await;
                        // An operation with an id is repeated until it is answered, and once more.
                        let id = u128::from(task) << 64 | round;
                        let record = || meter.record(&metered[i]).at(at).id(id);
                        while recorded.run(record()).await.is_none() {}
                        if round % 4 == 0 {
                            recorded.run(record()).await;
                        }
                        ids.insert(id);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    round += 1;
                }
                (tallies, ids, recorded)
            })
        })
        .collect();

    let mover = cluster.clone();
    let moved = tokio::task::spawn_blocking(move || {
        let mut owner =
            mover.nodes().iter().position(|node| node.port() == mover.owner(moving).unwrap().port()).unwrap();
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(100));
            let next = (owner + 1) % 3;
            mover.migrate(moving, next).unwrap();
            assert_eq!(mover.owner(moving).unwrap().port(), mover.nodes()[next].port());
            owner = next;
        }
    });
    moved.await.unwrap();
    for redirection in ["errorstat_ASK:", "errorstat_MOVED:"] {
        let seen = |node: &Server| node.info("errorstats").unwrap().contains(redirection);
        assert!(cluster.nodes().iter().all(seen), "{redirection} nothing was redirected");
    }
    over.store(true, Ordering::Relaxed);

    let (mut admitted, mut unknown, mut ids) = (vec![0; limited.len()], vec![0; limited.len()], BTreeSet::new());
    let mut longest = Duration::ZERO;
    for task in tasks {
        let (tallies, own, recorded) = task.await.unwrap();
        for (i, tally) in tallies.iter().enumerate() {
            (admitted[i], unknown[i]) = (admitted[i] + tally.admitted, unknown[i] + tally.failed);
        }
        for tally in tallies.iter().chain([&recorded]) {
            longest = longest.max(tally.longest);
        }
        ids.extend(own);
    }
    assert_bounded(longest);
    for (i, key) in limited.iter().enumerate() {
        while limiter.acquire(key).at(at).await.unwrap().allowed() {
            admitted[i] += 1;
        }
        let decision = limiter.peek(key).at(at).await.unwrap();
        assert_eq!((decision.allowed(), decision.used()), (false, MAX), "{key}");
        // An answer that was lost may have been an admission.
        let range = admitted[i]..=admitted[i] + unknown[i];
        assert!(range.contains(&MAX), "{key}: {range:?} admitted");
    }
    for key in &metered {
        let decision = meter.peek(key).at(at).await.unwrap();
        assert_eq!(decision.used(), ids.len() as u64, "{key}");
    }
    let left: i64 = cluster.nodes().iter().map(|node| node.command(&["DBSIZE"]).unwrap().int()).sum();
    assert_eq!(left, keys.len() as i64, "every key is on one node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_on_a_slot_that_moves_count_once() {
    let _alone = alone();
    operations_count_once(|url| async move { RedisStore::connect(&url).await.unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_over_a_connection_of_the_users_own_count_once() {
    let _alone = alone();
    operations_count_once(|url| async move {
        let nodes = url.trim_start_matches("redis+cluster://").split(',').map(|node| format!("redis://{node}"));
        let client = ClusterClientBuilder::new(nodes).retries(0).build().unwrap();
        let connection = Connection::from(client.get_async_connection().await.unwrap());
        RedisStore::builder().with_connection(connection).unwrap()
    })
    .await;
}

/// Operates on one key every few milliseconds.
fn hammer(limiter: &Arc<Limiter<RedisStore>>, key: &str, over: &Arc<AtomicBool>) -> JoinHandle<Vec<Outcome>> {
    let (limiter, key, over) = (limiter.clone(), key.to_owned(), over.clone());
    tokio::spawn(async move {
        let mut outcomes = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let answer = limiter.record(&key).await;
            outcomes.push(Outcome { begun, took: begun.elapsed(), answered: answer.is_ok() });
            if let Err(error) = answer {
                assert_temporary(&error);
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        outcomes
    })
}

struct Outcome {
    begun: Instant,
    took: Duration,
    answered: bool,
}

/// Checks what the loss of a master does, until it is back. In the meantime, `stand_in` holds its port.
async fn a_master_is_lost(stand_in: impl FnOnce(u16) -> Box<dyn Send>) {
    let mut cluster = Cluster::start().unwrap();
    for node in cluster.nodes() {
        // Otherwise all slots are refused as soon as one is not served.
        node.expect_ok(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    }
    let ports: Vec<u16> = cluster.nodes().iter().map(Server::port).collect();
    let owned_by = |port: u16| {
        let mut keys = (0..).map(|i| format!("key {i}"));
        keys.find(|key| cluster.owner(slot(&cluster, key)).unwrap().port() == port).unwrap()
    };
    let keys: Vec<String> = ports.iter().map(|port| owned_by(*port)).collect();
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    let limiter = Arc::new(Limiter::new(NAME, Limit::meter(Duration::from_secs(60)).unwrap(), store));
    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = keys.iter().map(|key| hammer(&limiter, key, &over)).collect();

    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.nodes_mut()[0].kill();
    // It may have answered while it was being killed.
    let killed = Instant::now();
    let stand_in = stand_in(ports[0]);
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    drop(stand_in);
    let restarting = Instant::now();
    cluster.nodes_mut()[0].restart().unwrap();
    let until = Instant::now() + Duration::from_secs(15);
    while limiter.record(&keys[0]).await.is_err() {
        assert!(Instant::now() < until, "the restarted master is not used again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let recovered = Instant::now();
    tokio::time::sleep(Duration::from_millis(300)).await;
    over.store(true, Ordering::Relaxed);

    for (i, task) in tasks.into_iter().enumerate() {
        let outcomes = task.await.unwrap();
        let longest = outcomes.iter().map(|outcome| outcome.took).max().unwrap();
        let failed = outcomes.iter().filter(|outcome| !outcome.answered).count();
        assert_bounded(longest);
        if i == 0 {
            let lost = |outcome: &&Outcome| outcome.begun > killed && outcome.begun + outcome.took < restarting;
            assert!(outcomes.iter().filter(lost).count() > 3, "no operation was tried meanwhile");
            assert!(outcomes.iter().filter(lost).all(|outcome| !outcome.answered), "a dead master answered");
            let after: Vec<_> = outcomes.iter().filter(|outcome| outcome.begun > recovered).collect();
            assert!(after.len() > 10 && after.iter().all(|outcome| outcome.answered), "it is there again");
        } else {
            assert_eq!(failed, 0, "operations on node {i}, which lives, failed");
            let used = limiter.peek(&keys[i]).await.unwrap().used();
            assert_eq!(used, outcomes.len() as u64, "node {i}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_fails_its_own_slots_only() {
    let _alone = alone();
    a_master_is_lost(|_| Box::new(())).await;
}

/// As if the host had vanished: connections are neither refused nor served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_master_fails_its_own_slots_only() {
    let _alone = alone();
    a_master_is_lost(|port| Box::new(std::net::TcpListener::bind(("127.0.0.1", port)).unwrap())).await;
}

/// A master that hangs keeps its connections open. The store must ask other nodes all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_taken_over_from_a_hanging_master_is_found() {
    let _alone = alone();
    let cluster = Cluster::start().unwrap();
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    let limiter = Limiter::new(NAME, policy!("100/1m"), store);
    let lost = slot(&cluster, "key");
    let (mut others, mut owner) = (Vec::new(), None);
    for node in cluster.nodes() {
        match cluster.owner(lost).unwrap().port() == node.port() {
            true => owner = Some(node),
            false => others.push(node),
        }
    }
    assert!(limiter.acquire("key").await.unwrap().allowed());

    owner.unwrap().pause().unwrap();
    let heir = others[0].command(&["CLUSTER", "MYID"]).unwrap().text();
    for node in &others {
        node.expect_ok(&["CLUSTER", "SETSLOT", &lost.to_string(), "NODE", &heir]).unwrap();
    }
    let hung = Instant::now();
    let mut longest = Duration::ZERO;
    let decision = loop {
        let begun = Instant::now();
        let answer = limiter.acquire("key").await;
        longest = longest.max(begun.elapsed());
        match answer {
            Ok(decision) => break decision,
            Err(error) => assert_temporary(&error),
        }
        assert!(hung.elapsed() < Duration::from_secs(5), "the new master is not found");
    };
    assert_bounded(longest);
    assert_eq!((decision.allowed(), decision.used()), (true, 1), "the log was lost with the master");
}
