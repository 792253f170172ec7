//! What an operation does when Redis fails: it returns a typed error or recovers, within its timeouts, and never counts twice.
//! No error prints a key.

use std::time::Duration;

use futures::future::join_all;
use limiter_core::store::LogKey;
use limiter_core::{Error, ErrorKind, Limiter, Policy, policy};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use testbed::server::Server;
use testbed::{Network, Proxy};

use crate::support::{TIMEOUT, calls, is_redis_6, limited, search, send, until, within};

const RESPONSE: Duration = Duration::from_millis(250);

/// The timeouts that these tests are about. The first connection may take long while other tests start servers.
fn builder() -> RedisStoreBuilder {
    RedisStore::builder()
        .connect_timeout(TIMEOUT)
        .response_timeout(RESPONSE)
}

/// A limiter that has been answered in time.
async fn limiter(builder: RedisStoreBuilder, url: &str, policy: Policy) -> Limiter<RedisStore> {
    let limiter = search(policy, builder.connect(url).await.unwrap());
    until("an answer", async || limiter.acquire("warm").await.is_ok()).await;
    limiter
}

/// A server behind a proxy that holds its replies, so that it executes what it does not answer.
struct Held {
    server: Server,
    proxy: Proxy,
}

impl Held {
    fn start() -> Self {
        let server = Server::start().unwrap();
        let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
        Self { server, proxy }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    /// How many operations and resets the server has executed.
    fn executed(&self) -> u64 {
        let calls = calls(&self.server);
        let executed = |name| calls.get(name).copied().unwrap_or(0);
        executed("evalsha") + executed("unlink")
    }

    /// Runs a call whose answer is held until the server has executed it twice.
    async fn repeated<T>(&self, call: impl Future<Output = T>) -> T {
        let before = self.executed();
        self.proxy.set(Network::HoldReplies);
        let release = async {
            until("a repetition", async || self.executed() >= before + 2).await;
            self.proxy.set(Network::Healthy);
        };
        within(TIMEOUT, async { tokio::join!(call, release).0 }).await
    }
}

#[tokio::test]
async fn a_late_answer_is_asked_for_again_unless_that_could_do_harm() {
    let held = Held::start();
    // More attempts than it takes, for a busy test machine.
    let limiter = limiter(builder().retries(50), &held.url(), policy!("5/1h")).await;
    let acquire = limiter.acquire("k").into_future();
    let decision = held.repeated(acquire).await.unwrap();
    let entry = decision.receipt().unwrap();
    assert_eq!((decision.is_allowed(), decision.used()), (true, 1));
    // A repetition is decided later than its entry: a window is exact by the times of its entries.
    let later = decision.at().micros_since(entry.at());
    assert!(later > 200_000, "{decision:?}");

    // From here on, the server knows all scripts.
    let renewed = limiter.renew("k", entry).await.unwrap();
    let entry = renewed.receipt().unwrap();
    assert!(limiter.settle("k", entry, 3).await.unwrap().applied());

    // An entry without a caller's id, which the first attempt has moved.
    let renewed = held.repeated(limiter.renew("k", entry).into_future());
    let entry = renewed.await.unwrap().receipt().unwrap();

    // Between two attempts nobody knows whether the first refund took effect.
    let error = held
        .repeated(limiter.refund("k", entry).into_future())
        .await;
    assert_timeout(&error.unwrap_err());
    let again = limiter.refund("k", entry).await.unwrap();
    assert_eq!((again.applied(), again.status().used()), (false, 0));

    // A second reset could remove what others have charged since the first.
    let before = held.executed();
    held.proxy.set(Network::HoldReplies);
    assert_timeout(&limiter.reset("k").await.unwrap_err());
    until("the reset", async || held.executed() > before).await;
    assert_eq!(held.executed() - before, 1);
}

#[track_caller]
fn assert_timeout(error: &Error) {
    let found = (error.kind(), error.is_retryable());
    assert_eq!(found, (ErrorKind::Timeout, true), "{error:?}");
}

#[tokio::test]
async fn retries_are_few_where_no_reply_arrives() {
    const CALLS: u64 = 400;
    let held = Held::start();
    let limiter = limiter(builder().retries(20), &held.url(), policy!("1000000/1h")).await;
    let before = held.executed();
    held.proxy.set(Network::HoldReplies);
    for result in join_all((0..CALLS).map(|n| limiter.acquire(n).into_future())).await {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
    }
    let executed = held.executed() - before;
    assert!(
        (CALLS..=CALLS + 100).contains(&executed),
        "{executed} attempts"
    );
    // The budget is empty, and the store continues without it.
    held.proxy.set(Network::Healthy);
    until("a recovery", async || limiter.acquire("k").await.is_ok()).await;
}

/// Checks that an error returns the key and prints it nowhere.
#[track_caller]
fn assert_private(error: &Error, key: &str) {
    let found = (error.key(), error.limiter_name());
    assert_eq!(found, (Some(key.as_bytes()), Some("search")), "{error:?}");
    let text = format!("{error} {error:?} {error:#?}");
    assert!(!text.contains(key), "{text}");
}

/// Scores and members that no limiter wrote. Most sort behind every entry, by their bytes or by a score that no limiter gives.
const FOREIGN: [(&str, &[u8]); 13] = [
    ("0", b"\xff 203.0.113.9"),
    ("1.5", b"203.0.113.9"),
    ("inf", b"203.0.113.9"),
    ("1", b""),
    // The length of a short entry and a time out of range, and a byte more.
    ("1", &[0; 26]),
    ("0", &[0xff; 27]),
    // The length of a long entry and a running total out of range, a byte more, and one with an id.
    ("0", &[0xff; 23]),
    ("0", &[0xff; 24]),
    ("0", &[0xff; 40]),
    // These sort before every entry, so they are noticed where they are alone.
    ("0", b"203.0.113.9"),
    ("0", b""),
    ("0", b"abcdefghijklmnopqrstuvwxyz"),
    ("0", b"i123456789abcdef0123456\xff"),
];

#[tokio::test]
async fn what_no_limiter_wrote_is_an_error_and_a_reset_removes_it() {
    let server = Server::start().unwrap();
    let limiter = limited(&server, policy!("5/1h")).await;
    let receipt = limiter.acquire("other").await.unwrap().receipt().unwrap();
    let behind_an_entry = FOREIGN[..9].iter().map(|case| (true, case));
    let alone = FOREIGN.iter().map(|case| (false, case));
    for (n, (has_entry, (score, member))) in behind_an_entry.chain(alone).enumerate() {
        let key = &format!("203.0.113.9 {n}");
        if has_entry {
            assert!(limiter.acquire(key).await.unwrap().is_allowed());
        }
        let log = LogKey::new(limiter.name(), key);
        let stored = limiter.store().redis_key(log);
        let add = [&b"ZADD"[..], &stored, score.as_bytes(), member];
        server.command::<()>(&add).unwrap();
        let mut errors = vec![limiter.acquire(key).await.unwrap_err()];
        if n == 0 {
            // A key of another type.
            server
                .command::<()>(&[&b"SET"[..], &stored, b"something else"])
                .unwrap();
            errors.push(limiter.acquire(key).await.unwrap_err());
            errors.push(limiter.peek(key).await.unwrap_err());
            errors.push(limiter.refund(key, receipt).await.unwrap_err());
            errors.push(limiter.store().inspect(log).await.unwrap_err());
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{member:?}: {error:?}");
            assert!(error.to_string().contains("reset"), "{error}");
            assert_private(&error, key);
            let shown = format!("{error:?}").contains(&*member.escape_ascii().to_string());
            assert!(!shown || member.is_empty(), "{error:?}");
        }
        assert!(limiter.reset(key).await.unwrap());
        assert_eq!(limiter.acquire(key).await.unwrap().used(), 1, "{member:?}");
    }
}

#[tokio::test]
async fn no_error_prints_a_key() {
    const KEY: &str = "203.0.113.7";
    let mut server = Server::start().unwrap();
    let limiter = limiter(builder(), &server.url(), policy!("5/1h")).await;
    let direct = limited(&server, policy!("5/1h")).await;
    let receipt = direct.acquire(KEY).await.unwrap().receipt().unwrap();
    let mut errors = vec![
        limiter.acquire(KEY).cost(6).await.unwrap_err(),
        limiter.acquire(KEY).cost(0).await.unwrap_err(),
    ];
    for (option, value, text) in [
        ("maxmemory", "100kb", "maxmemory"),
        ("min-replicas-to-write", "1", "good replicas"),
    ] {
        if text == "good replicas" && is_redis_6(&server) {
            continue;
        }
        send(&server, &format!("CONFIG SET {option} {value}"));
        let error = direct.acquire(KEY).await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        errors.push(error);
        send(&server, &format!("CONFIG SET {option} 0"));
    }
    // Refused operations left nothing behind.
    assert_eq!(direct.peek(KEY).await.unwrap().used(), 1);
    server.pause().unwrap();
    errors.push(limiter.acquire(KEY).await.unwrap_err());
    errors.push(limiter.refund(KEY, receipt).await.unwrap_err());
    server.kill();
    let log = LogKey::new(limiter.name(), KEY);
    errors.extend([
        limiter.acquire(KEY).await.unwrap_err(),
        limiter.status(KEY).await.unwrap_err(),
        limiter.settle(KEY, receipt, 2).await.unwrap_err(),
        limiter.reset(KEY).await.unwrap_err(),
        limiter.store().inspect(log).await.unwrap_err(),
    ]);

    // A server that does not know a command quotes its arguments, and so the key.
    let without = Server::start_with(&["--rename-command", "EVALSHA", ""]).unwrap();
    let quoted = without
        .command::<()>(&["EVALSHA", "0", "1", KEY])
        .unwrap_err();
    assert!(format!("{quoted:?}").contains(KEY), "{quoted:?}");
    let without = limited(&without, policy!("5/1h")).await;
    let error = without.acquire(KEY).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    // Servers quote the name of the command with different characters.
    let text = error.to_string();
    assert!(
        text.contains("unknown command") && text.contains("EVALSHA"),
        "{text}"
    );
    errors.push(error);
    for error in &errors {
        assert_private(error, KEY);
    }
    let store = limiter.store();
    let acquire = limiter.acquire(KEY);
    let debugged = format!("{limiter:?} {store:?} {acquire:?}");
    assert!(!debugged.contains(KEY), "{debugged}");
}
