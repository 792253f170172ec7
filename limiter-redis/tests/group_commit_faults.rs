//! What group commit sends together, and what becomes of it under cancellation, lost replies and errors.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, ErrorKind, Limiter, Policy, policy};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::server::{Cluster, Server};
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Client, Cmd, Pipeline, RedisFuture, Value};
use tokio::sync::Semaphore;

use common::{TIMEOUT, builder, connect_with_group_commit, soon};

mod common;

/// A connection that counts commands, and holds or loses their replies on demand. The server executes them in any case.
#[derive(Clone)]
struct Held {
    inner: ConnectionManager,
    /// The number of commands.
    sent: Arc<AtomicUsize>,
    /// Each reply takes a permit. They are closed when replies are no longer held.
    replies: Arc<Semaphore>,
    /// Whether to lose the next reply.
    loses: Arc<AtomicBool>,
}

impl Held {
    async fn connect(server: &Server) -> Self {
        let inner = ConnectionManager::new(Client::open(server.url()).unwrap()).await.unwrap();
        Self { inner, sent: Arc::default(), replies: Arc::new(Semaphore::new(0)), loses: Arc::default() }
    }

    /// Waits until this many commands were sent and executed.
    async fn sent(&self, count: usize) {
        let wait = async {
            while self.sent.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, wait).await.expect("a command is not sent");
    }
}

impl ConnectionLike for Held {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let reply = self.inner.req_packed_command(cmd).await;
            self.sent.fetch_add(1, Ordering::SeqCst);
            let permit = self.replies.acquire().await;
            if let Ok(permit) = permit {
                permit.forget();
            }
            if self.loses.swap(false, Ordering::SeqCst) {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
            }
            reply
        })
    }

    fn req_packed_commands<'a>(&'a mut self, p: &'a Pipeline, o: usize, c: usize) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(p, o, c)
    }

    fn get_db(&self) -> i64 {
        0
    }
}

type Search<C> = Limiter<RedisStore<C>>;

/// A limiter over a held connection, whose server knows the scripts.
async fn held(server: &Server, builder: RedisStoreBuilder, limit: &str) -> (Search<Held>, Held) {
    connect_with_group_commit(&server.url()).await;
    let connection = Held::connect(server).await;
    let store = builder.group_commit(true).with_connection(connection.clone()).unwrap();
    let policy: Policy = limit.parse().unwrap();
    (Limiter::new("search", policy, store), connection)
}

fn poll_once(future: std::pin::Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn used(decisions: impl IntoIterator<Item = Result<Decision, Error>>) -> Vec<(bool, u64)> {
    let pairs = decisions.into_iter().map(|decision| decision.unwrap()).map(|d| (d.allowed(), d.used()));
    pairs.collect()
}

#[tokio::test]
async fn without_concurrency_each_acquire_is_sent_at_once() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "5/1h").await;
    connection.replies.close();
    for n in 1..=5 {
        assert_eq!(soon(limiter.acquire("k")).await.unwrap().used(), n);
        assert_eq!(connection.sent.load(Ordering::SeqCst) as u64, n);
    }
}

#[tokio::test]
async fn what_arrives_meanwhile_goes_as_one_call_and_is_answered_in_order() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "50/1h").await;
    connection.replies.close();
    let answers = soon(join_all((0..100).map(|_| limiter.acquire("k")))).await;
    let expected: Vec<_> = (1..=100).map(|n| (n <= 50, n.min(50))).collect();
    assert_eq!(used(answers), expected);
    assert_eq!(connection.sent.load(Ordering::SeqCst), 2);
    // Other keys wait for nothing.
    soon(join_all((0..10).map(|key| limiter.acquire(key)))).await;
    assert_eq!(connection.sent.load(Ordering::SeqCst), 12);
}

#[tokio::test]
async fn two_policies_keep_the_order_of_arrival() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "5/1h").await;
    connection.replies.close();
    let gold = policy!("8/1h");
    let acquire = |gold_one: bool| {
        let acquire = limiter.acquire("k");
        if gold_one { acquire.policy(&gold) } else { acquire }
    };
    let order = [false, true, true, false, true, true, false, true, false, true, true, true];
    let answers = used(soon(join_all(order.map(acquire))).await);
    let mut log = 0;
    for (place, gold_one) in order.into_iter().enumerate() {
        let max = if gold_one { 8 } else { 5 };
        let allowed = log < max;
        log += u64::from(allowed);
        assert_eq!(answers[place], (allowed, log.min(max)), "place {place}");
    }
    // The first alone, then one call for each run of alike ones.
    assert_eq!(connection.sent.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn dropping_the_first_holds_nobody_up() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "5/1h").await;
    let mut first = Box::pin(limiter.acquire("k").into_future());
    poll_once(first.as_mut());
    // Its reply is never given. The two others wait for it.
    let mut others = pin!(join_all((0..2).map(|_| limiter.acquire("k"))));
    poll_once(others.as_mut());
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut others).await.is_err());
    drop(first);
    connection.replies.close();
    let answers = used(soon(others).await);
    // The first may count or not.
    assert!(answers == [(true, 1), (true, 2)] || answers == [(true, 2), (true, 3)], "{answers:?}");
}

#[tokio::test]
async fn dropping_one_that_waits_drops_nobody_else_and_does_not_count() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "50/1h").await;
    let acquire = || Box::pin(limiter.acquire("k").into_future());
    let mut all: Vec<_> = (0..10).map(|_| acquire()).collect();
    for one in &mut all {
        poll_once(one.as_mut());
    }
    // Neither the one that started the queue's task, nor others.
    for place in [7, 4, 1] {
        drop(all.remove(place));
    }
    connection.replies.close();
    let answers = used(soon(join_all(all)).await);
    assert_eq!(answers, (1..=7).map(|n| (true, n)).collect::<Vec<_>>());
    assert_eq!(soon(limiter.status("k")).await.unwrap().used(), 7);
}

#[tokio::test]
async fn dropping_all_leaves_nothing_behind() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "50/1h").await;
    for _ in 0..3 {
        let mut all = pin!(join_all((0..5).map(|_| limiter.acquire("k"))));
        poll_once(all.as_mut());
    }
    connection.replies.close();
    let before = connection.sent.load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    assert!(soon(limiter.acquire("k")).await.unwrap().allowed());
    assert!(connection.sent.load(Ordering::SeqCst) <= before + 2, "what was dropped is not sent");
    // The firsts may count. What waited behind them does not.
    let used = soon(limiter.status("k")).await.unwrap().used();
    assert!((1..=4).contains(&used), "{used}");
}

#[tokio::test]
async fn a_first_that_nobody_polls_holds_the_others_up_for_one_response_timeout() {
    let server = Server::start().unwrap();
    let timeout = Duration::from_millis(400);
    let (limiter, connection) = held(&server, builder().response_timeout(timeout), "5/1h").await;
    let mut first = Box::pin(limiter.acquire("k").into_future());
    poll_once(first.as_mut());
    connection.replies.close();
    let start = Instant::now();
    let answers = used(soon(join_all((0..2).map(|_| limiter.acquire("k")))).await);
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
    assert!(answers.iter().all(|(allowed, _)| *allowed), "{answers:?}");
    // The late end of the first does not disturb a later queue.
    let mut next = pin!(limiter.acquire("k").into_future());
    let _ = soon(first).await;
    assert!(soon(&mut next).await.unwrap().allowed());
}

#[tokio::test]
async fn a_group_whose_reply_is_lost_counts_once() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder().retries(1), "5/1h").await;
    let other = Limiter::new("search", policy!("5/1h"), common::connect(&server.url()).await);
    let old = other.acquire("k").await.unwrap().receipt().unwrap();
    let mut all = pin!(join_all((0..8).map(|_| limiter.acquire("k"))));
    poll_once(all.as_mut());
    connection.replies.add_permits(1);
    let answers = {
        let meanwhile = async {
            // The first was answered, and the others were executed: three of seven fit.
            connection.sent(2).await;
            assert_eq!(other.status("k").await.unwrap().used(), 5);
            assert!(other.refund("k", old).await.unwrap().applied());
            connection.loses.store(true, Ordering::SeqCst);
            connection.replies.close();
        };
        soon(async { tokio::join!(all, meanwhile).0 }).await
    };
    let receipts: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap().receipt()).collect();
    // Three were found again, with the usage of then. One more fits now.
    let expected = [(true, 2), (true, 4), (true, 4), (true, 4), (true, 5), (false, 5), (false, 5), (false, 5)];
    assert_eq!(used(answers), expected);
    assert_eq!(connection.sent.load(Ordering::SeqCst), 3);
    assert_eq!(other.status("k").await.unwrap().used(), 5);
    // Each receipt names an entry.
    for (place, receipt) in receipts.into_iter().take(5).enumerate() {
        let settled = other.refund("k", receipt.unwrap()).await.unwrap();
        assert_eq!((settled.applied(), settled.status().used()), (true, 4 - place as u64));
    }
}

#[tokio::test]
async fn a_group_that_is_repeated_twice_finds_the_entries_of_both_attempts() {
    for foreign_between in [false, true] {
        let server = Server::start().unwrap();
        let (limiter, connection) = held(&server, builder().retries(2), "5/1h").await;
        let other = Limiter::new("search", policy!("5/1h"), common::connect(&server.url()).await);
        let old = [other.acquire("k").await.unwrap().receipt(), other.acquire("k").await.unwrap().receipt()];
        let mut all = pin!(join_all((0..7).map(|_| limiter.acquire("k"))));
        poll_once(all.as_mut());
        connection.replies.add_permits(1);
        let lose_reply = || {
            connection.loses.store(true, Ordering::SeqCst);
            connection.replies.add_permits(1);
        };
        let meanwhile = async {
            // The first was answered, and two of the six others fit.
            connection.sent(2).await;
            for receipt in old {
                assert!(other.refund("k", receipt.unwrap()).await.unwrap().applied());
            }
            if foreign_between {
                assert!(other.acquire("k").await.unwrap().allowed());
            }
            lose_reply();
            // The second attempt appends one or two more.
            connection.sent(3).await;
            assert_eq!(other.status("k").await.unwrap().used(), 5);
            lose_reply();
            connection.sent(4).await;
            connection.replies.close();
        };
        let answers = soon(async { tokio::join!(all, meanwhile).0 }).await;
        let receipts: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap().receipt()).collect();
        let admitted = if foreign_between { 4 } else { 5 };
        let verdicts: Vec<bool> = used(answers).into_iter().map(|(allowed, _)| allowed).collect();
        assert_eq!(verdicts, (0..7).map(|place| place < admitted).collect::<Vec<_>>());
        assert_eq!(connection.sent.load(Ordering::SeqCst), 4);
        assert_eq!(other.status("k").await.unwrap().used(), 5);
        for (place, receipt) in receipts.into_iter().flatten().enumerate() {
            let settled = other.refund("k", receipt).await.unwrap();
            assert_eq!((settled.applied(), settled.status().used()), (true, 4 - place as u64));
        }
    }
}

#[tokio::test]
async fn what_was_dropped_before_the_repetition_counts_again() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder().retries(1), "5/1h").await;
    // Its appends keep two entries.
    let other = Limiter::new("search", policy!("2/1h"), common::connect(&server.url()).await);
    let mut all = pin!(join_all((0..4).map(|_| limiter.acquire("k"))));
    poll_once(all.as_mut());
    connection.replies.add_permits(1);
    let meanwhile = async {
        connection.sent(2).await;
        assert!(other.record("k").await.unwrap().receipt().is_some());
        connection.loses.store(true, Ordering::SeqCst);
        connection.replies.close();
    };
    let answers = soon(async { tokio::join!(all, meanwhile).0 }).await;
    // Only the last of the three was found again.
    assert_eq!(used(answers), [(true, 1), (true, 3), (true, 4), (true, 2)]);
}

#[tokio::test]
async fn a_group_that_makes_the_key_sets_its_expiry() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "5/1h").await;
    let mut peek = pin!(limiter.peek("k").into_future());
    poll_once(peek.as_mut());
    let mut others = pin!(join_all((0..3).map(|_| limiter.acquire("k"))));
    poll_once(others.as_mut());
    connection.replies.close();
    let (peeked, answers) = soon(async { tokio::join!(peek, others) }).await;
    assert_eq!(peeked.unwrap().used(), 0);
    assert_eq!(used(answers), [(true, 1), (true, 2), (true, 3)]);
    assert_eq!(connection.sent.load(Ordering::SeqCst), 2);
    let log = limiter.store().redis_key(LogKey::new(limiter.name(), "k"));
    let left = server.command(&[b"PTTL".as_slice(), &log]).unwrap().int();
    assert!(left > 3_500_000 && left < 4_100_000, "{left}");
}

#[tokio::test]
async fn everybody_gets_the_error() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "5/1h").await;
    connection.replies.close();
    let stored = limiter.store().redis_key(LogKey::new(limiter.name(), "secret"));
    server.command(&[b"SET".as_slice(), &stored, b"text"]).unwrap();
    for answer in soon(join_all((0..10).map(|_| limiter.acquire("secret")))).await {
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&b"secret"[..])));
        assert!(!format!("{error:?} {}", common::chain(&error)).contains("secret"), "{error:?}");
    }
}

/// The queue's task runs where the second operation was polled. If that runtime ends, the others go on.
#[test]
fn a_queue_whose_runtime_ends_goes_on_elsewhere() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::start().unwrap();
    let (here, elsewhere) = (runtime(), runtime());
    let (limiter, connection) = here.block_on(held(&server, builder(), "50/1h"));
    let limiter = Arc::new(limiter);
    let acquire = |limiter: Arc<Search<Held>>| async move { limiter.acquire("k").await };
    let wait = || std::thread::sleep(Duration::from_millis(100));
    let first = here.spawn(acquire(limiter.clone()));
    here.block_on(connection.sent(1));
    let second = elsewhere.spawn(acquire(limiter.clone()));
    wait();
    let third = here.spawn(acquire(limiter.clone()));
    wait();
    elsewhere.shutdown_timeout(TIMEOUT);
    connection.replies.close();
    here.block_on(soon(async {
        assert!(first.await.unwrap().unwrap().allowed());
        assert!(third.await.unwrap().unwrap().allowed());
        assert!(second.await.unwrap_err().is_cancelled());
    }));
}

#[tokio::test]
async fn in_a_cluster_each_key_has_its_queue() {
    let cluster = Cluster::start().unwrap();
    let limiter = Limiter::new("search", policy!("20/1h"), connect_with_group_commit(&cluster.url()).await);
    let keys = (0..6).flat_map(|key| [key; 30]);
    let answers = used(soon(join_all(keys.map(|key| limiter.acquire(key)))).await);
    let expected = (1..=30).map(|n| (n <= 20, n.min(20)));
    assert_eq!(answers, (0..6).flat_map(|_| expected.clone()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_group_drops_what_one_by_one_would_and_sets_the_expiry() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "6/1h").await;
    connection.replies.close();
    // Both policies together see an hour, and at most eight entries.
    let burst = policy!("8/1ms");
    let acquire = async |key| assert!(soon(limiter.acquire(key).policy(&burst)).await.unwrap().allowed());
    for key in ["together", "one by one"] {
        acquire(key).await;
        acquire(key).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    soon(join_all((0..8).map(|_| acquire("together")))).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        acquire("one by one").await;
    }
    for key in ["together", "one by one"] {
        let log = limiter.store().redis_key(LogKey::new(limiter.name(), key));
        assert_eq!(server.command(&[b"ZCARD".as_slice(), &log]).unwrap().int(), 8, "{key}");
        let left = server.command(&[b"PTTL".as_slice(), &log]).unwrap().int();
        assert!(left > 3_500_000 && left < 4_100_000, "{key}: {left}");
    }
}
