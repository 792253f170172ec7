//! What group commit sends together, and what becomes of it under cancellation, lost replies and errors.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use futures::future::join_all;
use limiter_core::store::{LogKey, Op};
use limiter_core::{Decision, Error, ErrorKind, Limiter, Policy, Receipt, policy};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::server::Server;
use redis::aio::ConnectionLike;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::support::{
    Hooked, TIMEOUT, builder, chain, connect, connect_with_group_commit, run, search, soon, ttl, until,
};

/// What a held connection counts, and how it holds or loses replies on demand. The server executes the commands in any case.
#[derive(Clone)]
struct Held {
    /// The number of commands.
    sent: Arc<AtomicUsize>,
    /// Each reply takes a permit. They are closed when replies are no longer held.
    replies: Arc<Semaphore>,
    /// Whether to lose the next reply.
    loses: Arc<AtomicBool>,
}

impl Held {
    /// Waits until this many commands were sent and executed.
    async fn sent(&self, count: usize) {
        until("a command is sent", async || self.count() >= count).await;
    }

    fn count(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

/// A limiter over a held connection, whose server knows the scripts.
async fn held(server: &Server, builder: RedisStoreBuilder, limit: &str) -> (Limiter<RedisStore>, Held) {
    connect_with_group_commit(&server.url()).await;
    let held = Held { sent: Arc::default(), replies: Arc::new(Semaphore::new(0)), loses: Arc::default() };
    let hook = held.clone();
    let connection = Hooked::connect(server, move |inner, cmd| {
        let held = hook.clone();
        Box::pin(async move {
            let reply = inner.req_packed_command(cmd).await;
            held.sent.fetch_add(1, Ordering::SeqCst);
            if let Ok(permit) = held.replies.acquire().await {
                permit.forget();
            }
            if held.loses.swap(false, Ordering::SeqCst) {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
            }
            reply
        })
    });
    let store = builder.group_commit(true).with_connection(connection.await).unwrap();
    (search(limit.parse::<Policy>().unwrap(), store), held)
}

fn poll_once(future: Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn used(decisions: impl IntoIterator<Item = Result<Decision, Error>>) -> Vec<(bool, u64)> {
    let pairs = decisions.into_iter().map(|decision| decision.unwrap()).map(|d| (d.allowed(), d.used()));
    pairs.collect()
}

#[tokio::test]
async fn what_arrives_meanwhile_goes_as_one_call_and_is_answered_in_order() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "50/1h").await;
    connection.replies.close();
    let expect_calls = |count: usize| assert_eq!(connection.sent.swap(0, Ordering::SeqCst), count);
    for n in 1..=5 {
        assert_eq!(soon(limiter.acquire("alone")).await.unwrap().used(), n);
        expect_calls(1);
    }
    let answers = soon(join_all((0..100).map(|_| limiter.acquire("k")))).await;
    assert_eq!(used(answers), (1..=100).map(|n| (n <= 50, n.min(50))).collect::<Vec<_>>());
    expect_calls(2);
    // Other keys wait for nothing.
    soon(join_all((0..10).map(|key| limiter.acquire(key)))).await;
    expect_calls(10);

    // Under a resolution, those that are kept go apart from the others, which merge into one entry at once.
    let coarse = policy!("50/1h~1h");
    let kept = [false, true, true, false, false, false, true, false];
    let answers = soon(join_all(kept.map(|keep| {
        let op = Op::acquire("kept", &coarse);
        run(limiter.store(), if keep { op.with_kept() } else { op })
    })))
    .await;
    let receipts = answers.iter().map(|answer| answer.as_ref().unwrap().receipt().is_some());
    assert_eq!(receipts.collect::<Vec<_>>(), kept);
    assert_eq!(used(answers), (1..=8).map(|n| (true, n)).collect::<Vec<_>>());
    expect_calls(5);
    let merged = Op::acquire("merged", &coarse);
    let answers = soon(join_all((0..100).map(|_| run(limiter.store(), merged)))).await;
    assert_eq!(used(answers), (1..=100).map(|n| (n <= 50, n.min(50))).collect::<Vec<_>>());
    expect_calls(2);
    let log = connect(&server.url()).await.inspect(merged.log).await.unwrap().unwrap();
    // An hour may have ended.
    assert!(log.cost == 50 && log.entries <= 2, "{log:?}");

    let policies = [policy!("5/1h"), policy!("8/1h")];
    let order = [0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1];
    let acquires = order.map(|policy| limiter.acquire("two policies").policy(&policies[policy]));
    let answers = used(soon(join_all(acquires)).await);
    let mut log = 0;
    for (place, policy) in order.into_iter().enumerate() {
        let max = [5, 8][policy];
        let allowed = log < max;
        log += u64::from(allowed);
        assert_eq!(answers[place], (allowed, log.min(max)), "place {place}");
    }
    // The first alone, then one call for each run of alike ones.
    expect_calls(8);
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
    let before = connection.count();
    tokio::task::yield_now().await;
    assert!(soon(limiter.acquire("k")).await.unwrap().allowed());
    assert!(connection.count() <= before + 2, "what was dropped is not sent");
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
    let start = tokio::time::Instant::now();
    let answers = used(soon(join_all((0..2).map(|_| limiter.acquire("k")))).await);
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
    assert!(answers.iter().all(|(allowed, _)| *allowed), "{answers:?}");
    // The late end of the first does not disturb a later queue.
    let mut next = pin!(limiter.acquire("k").into_future());
    let _ = soon(first).await;
    assert!(soon(&mut next).await.unwrap().allowed());
}

/// Acquires `count` units at once, of which the first is answered and the others go as one call, and does something meanwhile.
/// Returns the answers, and the receipts.
async fn meanwhile(
    (limiter, connection): &(Limiter<RedisStore>, Held),
    count: usize,
    meanwhile: impl AsyncFnOnce(),
) -> (Vec<(bool, u64)>, Vec<Receipt>) {
    let mut all = pin!(join_all((0..count).map(|_| limiter.acquire("k"))));
    poll_once(all.as_mut());
    connection.replies.add_permits(1);
    let meanwhile = async {
        connection.sent(2).await;
        meanwhile().await;
        connection.replies.close();
    };
    let answers = soon(async { tokio::join!(all, meanwhile).0 }).await;
    let receipts = answers.iter().filter_map(|answer| answer.as_ref().unwrap().receipt()).collect();
    (used(answers), receipts)
}

/// Each receipt names an entry, and there are no others.
async fn refund_all(limiter: &Limiter<RedisStore>, receipts: Vec<Receipt>) {
    for (place, receipt) in receipts.into_iter().enumerate() {
        let settled = limiter.refund("k", receipt).await.unwrap();
        assert_eq!((settled.applied(), settled.status().used()), (true, 4 - place as u64));
    }
}

#[tokio::test]
async fn a_group_whose_reply_is_lost_counts_once() {
    let server = Server::start().unwrap();
    let held = held(&server, builder().retries(1), "5/1h").await;
    let other = search(policy!("5/1h"), connect(&server.url()).await);
    let old = other.acquire("k").await.unwrap().receipt().unwrap();
    let (answers, receipts) = meanwhile(&held, 8, async || {
        // Three of seven fit.
        assert_eq!(other.status("k").await.unwrap().used(), 5);
        assert!(other.refund("k", old).await.unwrap().applied());
        held.1.loses.store(true, Ordering::SeqCst);
    })
    .await;
    // Three were found again, with the usage of then. One more fits now.
    let expected = [(true, 2), (true, 4), (true, 4), (true, 4), (true, 5), (false, 5), (false, 5), (false, 5)];
    assert_eq!(answers, expected);
    assert_eq!(held.1.count(), 3);
    assert_eq!(other.status("k").await.unwrap().used(), 5);
    assert_eq!(receipts.len(), 5);
    refund_all(&other, receipts).await;
}

#[tokio::test]
async fn a_group_that_is_repeated_twice_finds_the_entries_of_both_attempts() {
    for foreign_between in [false, true] {
        let server = Server::start().unwrap();
        let held = held(&server, builder().retries(2), "5/1h").await;
        let connection = &held.1;
        let other = search(policy!("5/1h"), connect(&server.url()).await);
        let old = [other.acquire("k").await.unwrap().receipt(), other.acquire("k").await.unwrap().receipt()];
        let lose_reply = || {
            connection.loses.store(true, Ordering::SeqCst);
            connection.replies.add_permits(1);
        };
        let (answers, receipts) = meanwhile(&held, 7, async || {
            // Two of the six others fit.
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
        })
        .await;
        let admitted = if foreign_between { 4 } else { 5 };
        let verdicts: Vec<bool> = answers.into_iter().map(|(allowed, _)| allowed).collect();
        assert_eq!(verdicts, (0..7).map(|place| place < admitted).collect::<Vec<_>>());
        assert_eq!(connection.count(), 4);
        assert_eq!(other.status("k").await.unwrap().used(), 5);
        assert_eq!(receipts.len(), admitted);
        refund_all(&other, receipts).await;
    }
}

#[tokio::test]
async fn what_was_dropped_before_the_repetition_counts_again() {
    let server = Server::start().unwrap();
    let held = held(&server, builder().retries(1), "5/1h").await;
    // Its appends keep two entries.
    let other = search(policy!("2/1h"), connect(&server.url()).await);
    let (answers, _) = meanwhile(&held, 4, async || {
        assert!(other.record("k").await.unwrap().receipt().is_some());
        held.1.loses.store(true, Ordering::SeqCst);
    })
    .await;
    // Only the last of the three was found again.
    assert_eq!(answers, [(true, 1), (true, 3), (true, 4), (true, 2)]);
}

#[tokio::test]
async fn a_group_that_makes_the_key_sets_its_expiry() {
    let server = Server::start().unwrap();
    let (limiter, connection) = held(&server, builder(), "5/1h").await;
    let mut peek = pin!(limiter.peek("k").into_future());
    poll_once(peek.as_mut());
    let others = join_all((0..3).map(|_| limiter.acquire("k")));
    connection.replies.close();
    let (answers, peeked) = soon(async { tokio::join!(others, peek) }).await;
    assert_eq!(peeked.unwrap().used(), 0);
    assert_eq!(used(answers), [(true, 1), (true, 2), (true, 3)]);
    assert_eq!(connection.count(), 2);
    let left = ttl(&server, limiter.store(), LogKey::new(limiter.name(), "k"));
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
        assert!(!format!("{error:?} {}", chain(&error)).contains("secret"), "{error:?}");
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Starts three acquires one after the other, each on its runtime, while the reply to the first is held.
fn start_three(
    limiter: &Arc<Limiter<RedisStore>>,
    connection: &Held,
    runtimes: [&Runtime; 3],
) -> [tokio::task::JoinHandle<Result<Decision, Error>>; 3] {
    let started = Arc::new(AtomicUsize::new(0));
    [0, 1, 2].map(|place| {
        let (limiter, started) = (limiter.clone(), started.clone());
        let polled = started.clone();
        let task = runtimes[place].spawn(async move {
            let mut acquire = pin!(limiter.acquire("k").into_future());
            poll_once(acquire.as_mut());
            polled.fetch_add(1, Ordering::SeqCst);
            acquire.await
        });
        runtimes[place].block_on(async {
            connection.sent(1).await;
            until("it waits", async || started.load(Ordering::SeqCst) > place).await;
        });
        task
    })
}

/// The queue's owner is the first, and then a task on its runtime. If that runtime ends or stands still, the others go on.
#[test]
fn a_queue_whose_runtime_ends_or_stands_still_goes_on_elsewhere() {
    let server = Server::start().unwrap();
    for (ends, place) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let (here, elsewhere) = (runtime(), runtime());
        let timeouts =
            if ends { builder() } else { builder().response_timeout(Duration::from_millis(400)).retries(50) };
        let (limiter, connection) = here.block_on(held(&server, timeouts, "1000/1h"));
        let limiter = Arc::new(limiter);
        let tasks = start_three(&limiter, &connection, [0, 1, 2].map(|i| if i == place { &elsewhere } else { &here }));
        if ends {
            elsewhere.shutdown_timeout(TIMEOUT);
            connection.replies.close();
            here.block_on(soon(async {
                for (i, task) in tasks.into_iter().enumerate() {
                    match task.await {
                        Ok(answer) => assert!(i != place && answer.unwrap().allowed(), "{i}"),
                        Err(error) => assert!(i == place && error.is_cancelled(), "{i}"),
                    }
                }
            }));
        } else {
            let [first, second, third] = tasks;
            let (go_on, stands_still) = std::sync::mpsc::channel::<()>();
            elsewhere.spawn(async move { _ = stands_still.recv() });
            connection.replies.close();
            here.block_on(soon(async {
                assert!(third.await.unwrap().unwrap().allowed());
                for answer in join_all((0..100).map(|_| limiter.acquire("k"))).await {
                    assert!(answer.unwrap().allowed());
                }
                go_on.send(()).unwrap();
                assert!(first.await.unwrap().unwrap().allowed() && second.await.unwrap().unwrap().allowed());
                assert_eq!(limiter.status("k").await.unwrap().used(), 103);
            }));
        }
        assert!(here.block_on(soon(limiter.reset("k"))).unwrap());
    }
}
