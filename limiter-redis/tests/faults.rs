//! What an operation does when Redis does not do its part: a typed error or a recovery, within the time-out, and nothing
//! counted twice.

use std::process::Command;
use std::time::{Duration, Instant};

use limiter_core::{ErrorKind, Limit, Limiter};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

const RESPONSE: Duration = Duration::from_millis(250);
/// Two attempts with the pause between them, and what a busy test machine adds.
const BOUND: Duration = Duration::from_millis(2 * 270 + 700);

async fn limiter(server: &Server) -> Limiter<RedisStore> {
    let builder = RedisStore::builder().response_timeout(RESPONSE).retries(1);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // The first connection may take long while other tests start servers.
        match builder.clone().connect_timeout(Duration::from_secs(5)).connect(&server.url()).await {
            Ok(store) => return Limiter::new(store, Limit::per_hour(5).unwrap()),
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
    }
}

/// The result of a call, which must come within the bound.
async fn within<T>(call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = tokio::time::timeout(Duration::from_secs(20), call).await.expect("the call hangs");
    assert!(start.elapsed() < BOUND, "took {:?}", start.elapsed());
    result
}

/// Tries until it works, for at most ten seconds: how long a server takes to come back is not the store's doing.
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

/// A server on which DEBUG works, which before version 7 needs no permission, and has no option to give it.
fn server_with_debug() -> Server {
    let server = Server::start().unwrap();
    if server.info("server").unwrap().contains("redis_version:6.") {
        return server;
    }
    Server::start_with(&["--enable-debug-command", "yes"]).unwrap()
}

/// Lets the server sleep, from a connection of its own that it has answered on before.
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

fn signal(server: &Server, signal: &str) {
    let status = Command::new("kill").args([signal, &server.pid().to_string()]).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_flushed_script_is_loaded_again() {
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    for used in 1..=3 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]).unwrap().text(), "OK");
        assert_eq!(within(limiter.acquire("k")).await.unwrap().used(), used);
    }
}

#[tokio::test]
async fn a_killed_connection_is_made_anew_and_the_operation_counts_once() {
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
    let mut server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    signal(&server, "-STOP");
    let (result, ()) = tokio::join!(within(limiter.acquire("k")), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.kill();
    });
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
}

#[tokio::test]
async fn an_answer_later_than_the_timeout_is_asked_for_again_and_counts_once() {
    let server = server_with_debug();
    // More attempts than it takes, for a busy test machine.
    let patient = RedisStore::builder().connect_timeout(Duration::from_secs(5)).response_timeout(RESPONSE).retries(3);
    let store = patient.connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store, Limit::per_hour(5).unwrap());
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let sleeper = sleep_server(&server, "0.4");
    // The first attempt is executed when the server wakes, the others right after it.
    let decision = within(limiter.acquire("k")).await.unwrap();
    assert_eq!((decision.allowed(), decision.used()), (true, 1));
    sleeper.join().unwrap();
    assert_eq!(used_eventually(&limiter, "k").await, 1);
}

#[tokio::test]
async fn a_server_asleep_for_longer_than_all_attempts_is_a_timeout_that_counts_at_most_once() {
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
    let server = server_with_debug();
    let limiter = limiter(&server).await;
    let policy = limiter.policy().clone();
    let op = limiter_core::Op::acquire("k", &policy).id(0xfeed_u128);
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let sleeper = sleep_server(&server, "1");
    assert_eq!(within(limiter.run(op)).await.unwrap_err().kind(), ErrorKind::Timeout);
    sleeper.join().unwrap();
    used_eventually(&limiter, "k").await;
    let decision = limiter.run(op).await.unwrap();
    assert_eq!((decision.allowed(), decision.used()), (true, 1));
}

#[tokio::test]
async fn a_full_server_refuses_with_a_typed_error_and_goes_on_denying() {
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
    assert!(error.to_string().contains("OOM") || error.to_string().contains("maxmemory"), "{error}");
    assert!(!within(limiter.acquire("full")).await.unwrap().allowed(), "a denial needs no memory");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert_eq!(within(limiter.acquire("new")).await.unwrap().used(), 1, "the refused operation left nothing behind");
}

#[tokio::test]
async fn a_read_only_replica_answers_peeks_and_refuses_the_rest() {
    let master = Server::start().unwrap();
    let replica = master.start_replica().unwrap();
    let limiter = limiter(&replica).await;
    let error = within(limiter.acquire("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("READONLY") || error.to_string().contains("read only"), "{error}");
    assert_eq!(within(limiter.peek("k")).await.unwrap().used(), 0);
}

#[tokio::test]
async fn a_key_of_another_type_is_named_and_a_reset_mends_it() {
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    let stored = limiter.store().redis_key("customer 7");
    server.command(&[b"SET".as_slice(), &stored, b"something else"]).unwrap();
    let error = within(limiter.acquire("customer 7")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("customer 7") && error.to_string().contains("reset"), "{error}");
    assert_eq!(within(limiter.peek("customer 7")).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(limiter.reset("customer 7").await.unwrap());
    assert_eq!(limiter.acquire("customer 7").await.unwrap().used(), 1);
}

#[tokio::test]
async fn foreign_members_are_an_error_and_a_reset_mends_it() {
    let server = Server::start().unwrap();
    let limiter = limiter(&server).await;
    let now = (u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap() + 60_000_000).to_string();
    let nineteen = [0_u8; 19];
    for (name, score, member) in [
        ("a plain member", now.as_str(), b"203.0.113.9".as_slice()),
        ("an empty member", &now, b""),
        ("a member of the right length, with nonsense in it", &now, b"abcdefghi\xffklmnopqr"),
        ("a member one byte too long", &now, &nineteen),
        ("a score of no time", "1.5", b"abcdefghi\x00klmnopqr"),
        ("an infinite score", "inf", b"abcdefghi\x00klmnopqr"),
    ] {
        let key = name;
        assert!(limiter.acquire(key).await.unwrap().allowed());
        let stored = limiter.store().redis_key(key);
        if score == "1.5" {
            // Alone, or the entry before it hides it.
            limiter.reset(key).await.unwrap();
        }
        server.command(&[b"ZADD".as_slice(), &stored, score.as_bytes(), member]).unwrap();
        let error = within(limiter.acquire(key)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error:?}");
        assert!(error.to_string().contains(name), "{name}: {error}");
        assert!(limiter.reset(key).await.unwrap(), "{name}");
        assert_eq!(limiter.acquire(key).await.unwrap().used(), 1, "{name}");
    }
}

#[tokio::test]
async fn nobody_there_is_an_error_in_time() {
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
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let start = Instant::now();
    let builder = RedisStore::builder().connect_timeout(Duration::from_millis(300)).response_timeout(RESPONSE);
    let error = match builder.connect(&url).await {
        Ok(store) => Limiter::new(store, Limit::per_hour(5).unwrap()).acquire("k").await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(3), "took {:?}", start.elapsed());
}
