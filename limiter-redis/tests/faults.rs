//! What an operation does when Redis fails: it returns a typed error or recovers, within its timeouts, and counts nothing twice.
//! No error prints a key.
//!
//! These tests assert times, so they run one after the other, in a test program that runs nothing else.

use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::store::LogKey;
use limiter_core::{Error, ErrorKind, Limiter, policy};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use limiter_testkit::server::Server;
use testbed::{Network, Proxy, alone};

use common::{chain, soon};

mod common;

const RESPONSE: Duration = Duration::from_millis(250);
/// Two attempts with the pause between them, and what a busy test machine adds.
const BOUND: Duration = Duration::from_millis(2 * 270 + 700);

/// The timeouts that these tests are about. The first connection may take long while other tests start servers.
fn builder() -> RedisStoreBuilder {
    RedisStore::builder().connect_timeout(Duration::from_secs(5)).response_timeout(RESPONSE)
}

async fn limiter(server: &Server) -> Limiter<RedisStore> {
    let builder = builder().retries(1);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match builder.clone().connect(&server.url()).await {
            Ok(store) => return Limiter::new("search", policy!("5/1h"), store),
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
    }
}

/// Returns the result of a call, which must end within the bound.
async fn within<T>(call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = soon(call).await;
    assert!(start.elapsed() < BOUND, "took {:?}", start.elapsed());
    result
}

/// Tries until it works, for at most ten seconds: the store does not determine how long a server takes to come back.
async fn used_eventually(limiter: &Limiter<RedisStore>, key: &str) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match limiter.peek(key).await {
            Ok(decision) => return decision.used(),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                assert!(Instant::now() < deadline, "no recovery: {error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Starts a server on which DEBUG works. Before version 7 it needs no permission, and there is no option to give it.
fn server_with_debug() -> Server {
    let server = Server::start().unwrap();
    if server.info("server").unwrap().contains("redis_version:6.") {
        return server;
    }
    Server::start_with(&["--enable-debug-command", "yes"]).unwrap()
}

/// Lets the server sleep, by way of a connection on which it has answered before.
fn sleep_server(server: &Server, seconds: &'static str) -> std::thread::JoinHandle<()> {
    use std::io::{Read, Write};
    let call = |stream: &mut std::net::TcpStream, command: &str| {
        stream.write_all(command.as_bytes())?;
        let mut answer = [0; 64];
        let read = stream.read(&mut answer)?;
        Ok::<_, std::io::Error>(answer[..read].to_vec())
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut stream = loop {
        assert!(Instant::now() < deadline, "the server answers no PING");
        let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", server.port())) else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        if call(&mut stream, "PING\r\n").is_ok_and(|answer| answer == b"+PONG\r\n") {
            break stream;
        }
    };
    let handle = std::thread::spawn(move || {
        let answer = call(&mut stream, &format!("DEBUG SLEEP {seconds}\r\n")).unwrap();
        assert!(answer.starts_with(b"+OK"), "{}", answer.escape_ascii());
    });
    std::thread::sleep(Duration::from_millis(50));
    handle
}

#[tokio::test]
async fn a_flushed_script_is_loaded_again() {
    let _alone = alone();
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    for used in 1..=3 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]).unwrap().text(), "OK");
        assert_eq!(within(limiter.acquire("k")).await.unwrap().used(), used);
    }
}

#[tokio::test]
async fn a_killed_connection_is_made_anew_and_the_operation_counts_once() {
    let _alone = alone();
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    for used in 1..=4 {
        assert!(server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap().int() > 0);
        let decision = within(limiter.acquire("k")).await.unwrap();
        assert_eq!((decision.allowed(), decision.used()), (true, used));
    }
}

#[tokio::test]
async fn a_killed_server_fails_fast_and_a_restarted_one_is_found_again() {
    let _alone = alone();
    let mut server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    assert!(limiter.acquire("k").await.unwrap().allowed());
    server.kill();
    for _ in 0..3 {
        let error = within(limiter.acquire("k")).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
        assert!(error.is_retryable());
    }
    server.restart().unwrap();
    assert_eq!(used_eventually(&limiter, "k").await, 0, "a server without persistence has forgotten the log");
    assert!(limiter.acquire("k").await.unwrap().allowed());
}

#[tokio::test]
async fn a_server_killed_in_mid_call_ends_the_call() {
    let _alone = alone();
    let mut server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    server.pause().unwrap();
    let (result, ()) = tokio::join!(within(limiter.acquire("k")), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.kill();
    });
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
}

#[tokio::test]
async fn a_server_that_stops_or_dies_under_group_commit_ends_every_call_in_time() {
    let _alone = alone();
    for dies in [false, true] {
        let mut server = Server::start().unwrap();
        let store = builder().group_commit(true).connect(&server.url()).await.unwrap();
        let limiter = Limiter::new("search", policy!("50/1h"), store);
        soon(async { while limiter.acquire("warm").await.is_err() {} }).await;
        server.pause().unwrap();
        let all = join_all((0..100).map(|n| {
            let limiter = &limiter;
            async move {
                tokio::time::sleep(Duration::from_millis(n % 7 * 20)).await;
                within(limiter.acquire("k")).await
            }
        }));
        let (results, ()) = tokio::join!(all, async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if dies {
                server.kill();
            }
        });
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
        }
        if dies {
            server.restart().unwrap();
        } else {
            server.resume().unwrap();
        }
        soon(async { while limiter.acquire("k").await.is_err() {} }).await;
    }
}

#[tokio::test]
async fn an_answer_later_than_the_timeout_is_asked_for_again_and_counts_once() {
    let _alone = alone();
    let server = server_with_debug();
    // More attempts than it takes, for a busy test machine.
    let store = builder().retries(3).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new("search", policy!("5/1h"), store);
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let sleeper = sleep_server(&server, "0.4");
    // The first attempt is executed when the server wakes, the others right after it.
    let decision = within(limiter.acquire("k")).await.unwrap();
    assert_eq!((decision.allowed(), decision.used()), (true, 1));
    sleeper.join().unwrap();
    assert_eq!(used_eventually(&limiter, "k").await, 1);

    // Under another policy than the limiter's, whose window the repetition must find.
    let gold = policy!("50/1ms");
    assert!(limiter.acquire("gold").policy(&gold).await.unwrap().allowed());
    let sleeper = sleep_server(&server, "0.4");
    let decision = within(limiter.acquire("gold").policy(&gold).cost(3)).await.unwrap();
    assert!(decision.allowed() && decision.receipt().is_some(), "{decision:?}");
    sleeper.join().unwrap();
    assert_eq!(used_eventually(&limiter, "gold").await, 4);
}

#[tokio::test]
async fn a_server_asleep_for_longer_than_all_attempts_is_a_timeout_that_counts_at_most_once() {
    let _alone = alone();
    let server = server_with_debug();
    let limiter = limiter(&server).await;
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let sleeper = sleep_server(&server, "2");
    let error = within(limiter.acquire("k")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error:?}");
    sleeper.join().unwrap();
    let used = used_eventually(&limiter, "k").await;
    assert!(used <= 1, "two attempts of one operation count {used} times");
}

#[tokio::test]
async fn the_callers_id_makes_a_repeated_call_count_once_across_a_timeout() {
    let _alone = alone();
    let server = server_with_debug();
    let limiter = limiter(&server).await;
    let acquire = || async { limiter.acquire("k").id(0xfeed_u128).await };
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let sleeper = sleep_server(&server, "1");
    assert_eq!(within(acquire()).await.unwrap_err().kind(), ErrorKind::Timeout);
    sleeper.join().unwrap();
    used_eventually(&limiter, "k").await;
    let decision = acquire().await.unwrap();
    assert_eq!((decision.allowed(), decision.used()), (true, 1));
}

#[tokio::test]
async fn a_repeated_attempt_is_decided_later_than_its_entry() {
    let _alone = alone();
    let server = Server::start().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
    let store = builder().retries(9).connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let limiter = Limiter::new("search", policy!("5/1h"), store);
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    proxy.set(Network::HoldReplies);
    let (decision, ()) = tokio::join!(limiter.acquire("k"), async {
        tokio::time::sleep(RESPONSE + Duration::from_millis(100)).await;
        proxy.set(Network::Healthy);
    });
    let decision = decision.unwrap();
    let entry = decision.receipt().unwrap();
    assert_eq!((decision.allowed(), decision.used()), (true, 1));
    // A window is exact by the times of its entries.
    assert!(decision.at().micros_since(entry.at()) > 200_000, "{decision:?}");
}

#[tokio::test]
async fn a_full_server_refuses_with_a_typed_error_and_goes_on_denying() {
    let _alone = alone();
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]).unwrap();
    let limiter = limiter(&server).await;
    for _ in 0..5 {
        assert!(limiter.acquire("full").await.unwrap().allowed());
    }
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1mb"]).unwrap().text(), "OK");
    assert!(server.info_number("memory", "used_memory").unwrap() > 500_000);
    server.command(&["CONFIG", "SET", "maxmemory", "100kb"]).unwrap();
    let error = within(limiter.acquire("new")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(chain(&error).contains("OOM") || chain(&error).contains("maxmemory"), "{}", chain(&error));
    assert!(!within(limiter.acquire("full")).await.unwrap().allowed(), "a denial needs no memory");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert_eq!(within(limiter.acquire("new")).await.unwrap().used(), 1, "the refused operation left nothing behind");
}

#[tokio::test]
async fn a_read_only_replica_answers_peeks_and_refuses_the_rest() {
    let _alone = alone();
    let master = Server::start().unwrap();
    let replica = master.start_replica().unwrap();
    let limiter = limiter(&replica).await;
    let error = within(limiter.acquire("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(chain(&error).contains("READONLY") || chain(&error).contains("read only"), "{}", chain(&error));
    assert_eq!(within(limiter.peek("k")).await.unwrap().used(), 0);
}

/// Checks that an error returns the key and prints it nowhere: not in its text, nor in that of its sources.
#[track_caller]
fn assert_private(error: &Error, key: &str) {
    assert_eq!((error.key(), error.limiter_name()), (Some(key.as_bytes()), Some("search")), "{error:?}");
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    assert!(!text.contains(key), "{text}");
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_a_reset_removes_it() {
    let _alone = alone();
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    let log = LogKey::new(limiter.name(), "customer 7");
    let stored = limiter.store().redis_key(log);
    server.command(&[b"SET".as_slice(), &stored, b"something else"]).unwrap();
    let receipt = limiter.acquire("other").await.unwrap().receipt().unwrap();
    for error in [
        within(limiter.acquire("customer 7")).await.unwrap_err(),
        within(limiter.peek("customer 7")).await.unwrap_err(),
        within(limiter.refund("customer 7", receipt)).await.unwrap_err(),
        within(limiter.store().inspect(log)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("reset"), "{error}");
        assert_private(&error, "customer 7");
    }
    assert!(limiter.reset("customer 7").await.unwrap());
    assert_eq!(limiter.acquire("customer 7").await.unwrap().used(), 1);
}

/// Members that no limiter wrote. These sort behind every entry, by their bytes or by a score that no limiter gives.
const BEHIND: [(&str, &str, &[u8]); 9] = [
    ("a text", "0", b"\xff 203.0.113.9"),
    ("a text with a score", "1.5", b"203.0.113.9"),
    ("a text with an infinite score", "inf", b"203.0.113.9"),
    ("an empty member with a score", "1", b""),
    ("the length of a short entry, and a time out of range", "1", &[0; 26]),
    ("a byte more than a short entry", "0", &[0xff; 27]),
    ("the length of a long entry, and a tag that no entry has", "0", &[0xff; 23]),
    (
        "a tag that announces a cost, and none",
        "0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x04 an id",
    ),
    (
        "a tag that announces no cost, and one",
        "0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00 an id a cost",
    ),
];
/// These sort before every entry, so they are noticed where they are alone.
const BEFORE: [(&str, &str, &[u8]); 4] = [
    ("a plain text", "0", b"203.0.113.9"),
    ("an empty member", "0", b""),
    ("the length of a short entry, and nonsense in it", "0", b"abcdefghijklmnopqrstuvwxyz"),
    ("the length of a caller's id, and no entry of it", "0", b"i123456789abcdef0123456\xff"),
];

#[tokio::test]
async fn foreign_members_are_an_error_and_a_reset_removes_them() {
    let _alone = alone();
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    let behind_an_entry = BEHIND.map(|case| (true, case));
    let alone = BEHIND.into_iter().chain(BEFORE).map(|case| (false, case));
    for (has_entry, (name, score, member)) in behind_an_entry.into_iter().chain(alone) {
        let key = name;
        if has_entry {
            assert!(limiter.acquire(key).await.unwrap().allowed());
        }
        let stored = limiter.store().redis_key(LogKey::new(limiter.name(), key));
        server.command(&[b"ZADD".as_slice(), &stored, score.as_bytes(), member]).unwrap();
        let error = within(limiter.acquire(key)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error:?}");
        assert_private(&error, name);
        assert!(!format!("{error:?}").contains(&*member.escape_ascii().to_string()) || member.is_empty(), "{error:?}");
        assert!(limiter.reset(key).await.unwrap(), "{name}");
        assert_eq!(limiter.acquire(key).await.unwrap().used(), 1, "{name}");
        assert!(limiter.reset(key).await.unwrap(), "{name}");
    }
}

/// A server that does not know a command quotes its arguments, and so the key.
#[tokio::test]
async fn an_error_that_quotes_the_key_is_cut() {
    let _alone = alone();
    let server = Server::start_with(&["--rename-command", "EVALSHA", ""]).unwrap();
    let limiter = limiter(&server).await;
    let quoted = server.command(&["EVALSHA", "0", "1", "203.0.113.7"]).unwrap();
    assert!(format!("{quoted:?}").contains("203.0.113.7"), "{quoted:?}");
    let error = within(limiter.acquire("203.0.113.7")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("unknown command 'EVALSHA'"), "{error}");
    assert_private(&error, "203.0.113.7");
}

#[tokio::test]
async fn no_error_prints_a_key() {
    let _alone = alone();
    const KEY: &str = "203.0.113.7";
    let mut server = server_with_debug();
    let limiter = limiter(&server).await;
    let receipt = limiter.acquire(KEY).await.unwrap().receipt().unwrap();
    assert_private(&limiter.acquire(KEY).cost(6).await.unwrap_err(), KEY);
    assert_private(&limiter.acquire(KEY).cost(0).await.unwrap_err(), KEY);

    for config in [["maxmemory", "100kb"], ["min-replicas-to-write", "1"]] {
        server.command(&["CONFIG", "SET", config[0], config[1]]).unwrap();
        assert_private(&within(limiter.acquire(KEY)).await.unwrap_err(), KEY);
        server.command(&["CONFIG", "SET", config[0], "0"]).unwrap();
    }
    let sleeper = sleep_server(&server, "1.5");
    assert_private(&within(limiter.acquire(KEY)).await.unwrap_err(), KEY);
    assert_private(&within(limiter.refund(KEY, receipt)).await.unwrap_err(), KEY);
    sleeper.join().unwrap();
    server.kill();
    for error in [
        within(limiter.acquire(KEY)).await.unwrap_err(),
        within(limiter.status(KEY)).await.unwrap_err(),
        within(limiter.settle(KEY, receipt, 2)).await.unwrap_err(),
        within(limiter.reset(KEY)).await.unwrap_err(),
        within(limiter.store().inspect(LogKey::new(limiter.name(), KEY))).await.unwrap_err(),
    ] {
        assert_private(&error, KEY);
    }
    let debugged = format!("{:?} {:?} {:?}", limiter, limiter.store(), limiter.acquire(KEY));
    assert!(!debugged.contains(KEY), "{debugged}");
}

/// Between the two attempts nobody knows whether the first refund took effect.
#[tokio::test]
async fn a_refund_whose_first_answer_was_lost_is_a_timeout_and_its_repetition_reports_it() {
    let _alone = alone();
    let server = server_with_debug();
    let store = builder().retries(3).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new("search", policy!("5/1h"), store);
    let receipt = limiter.acquire("k").await.unwrap().receipt().unwrap();
    assert!(limiter.acquire("k").await.unwrap().allowed());
    let unknown = limiter.acquire("warm").await.unwrap().receipt().unwrap();
    assert!(limiter.settle("warm", unknown, 2).await.unwrap().applied());
    let sleeper = sleep_server(&server, "0.4");
    // The first attempt is executed when the server wakes, the others right after it.
    let error = within(limiter.refund("k", receipt)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error:?}");
    sleeper.join().unwrap();
    let again = limiter.refund("k", receipt).await.unwrap();
    assert_eq!((again.applied(), again.status().used()), (false, 1));

    // A settlement to a cost can be repeated: it has the same effect again.
    let receipt = limiter.acquire("k").await.unwrap().receipt().unwrap();
    let sleeper = sleep_server(&server, "0.4");
    let settled = within(limiter.settle("k", receipt, 3)).await.unwrap();
    assert_eq!((settled.applied(), settled.status().used()), (true, 4));
    sleeper.join().unwrap();
}

#[tokio::test]
async fn nobody_there_is_an_error_in_time() {
    let _alone = alone();
    let mut server = Server::start().unwrap();
    let url = server.url();
    server.kill();
    let start = Instant::now();
    let builder = RedisStore::builder().connect_timeout(Duration::from_millis(300));
    let error = builder.connect(&url).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(3), "took {:?}", start.elapsed());
    assert!(error.to_string().contains(&server.port().to_string()), "{error}");
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_an_error_in_time() {
    let _alone = alone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let start = Instant::now();
    let builder = RedisStore::builder().connect_timeout(Duration::from_millis(300)).response_timeout(RESPONSE);
    let error = match builder.connect(&url).await {
        Ok(store) => Limiter::new("search", policy!("5/1h"), store).acquire("k").await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(3), "took {:?}", start.elapsed());
}
