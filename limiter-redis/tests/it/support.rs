//! What several tests need.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use limiter_core::store::{LogKey, Op, decide};
use limiter_core::{
    Decision, Error, ErrorKind, IntoPolicy, Limit, Limiter, Timestamp, Window, WindowStore,
};
use limiter_redis::{RedisStore, RedisStoreBuilder};
use testbed::server::{Cluster, Server};

/// Longer than anything takes on a busy test machine, for tests that are not about timeouts.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// The time that operations at given times count from.
pub(crate) const START: u64 = 1_700_000_000_000_000;

pub(crate) fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(START + micros).unwrap()
}

/// Returns a limit of `max` in a window of this many microseconds.
pub(crate) fn limit(max: u64, window: u64) -> Limit {
    Limit::with_window(max, Window::from_micros(window).unwrap()).unwrap()
}

/// Returns the size of a long test: `full` with `LIMITER_TEST_ALL=1`.
pub(crate) fn size<T>(default: T, full: T) -> T {
    if testbed::test_all() { full } else { default }
}

/// Returns a cluster for tests that change only their own keys. It ends with the program.
pub(crate) fn shared_cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start().unwrap());
    &CLUSTER
}

/// Returns a builder whose timeouts a busy test machine does not reach.
pub(crate) fn builder() -> RedisStoreBuilder {
    RedisStore::builder()
        .connect_timeout(TIMEOUT)
        .response_timeout(TIMEOUT)
}

/// Connects to a URL with timeouts that a busy test machine does not reach.
pub(crate) async fn connect(url: &str) -> RedisStore {
    builder().connect(url).await.unwrap()
}

pub(crate) fn search<S>(policy: impl IntoPolicy, store: S) -> Limiter<S> {
    Limiter::new("search", policy, store)
}

/// Returns the limiter `search` over a new connection to a server.
pub(crate) async fn limited(server: &Server, policy: impl IntoPolicy) -> Limiter<RedisStore> {
    search(policy, connect(&server.url()).await)
}

/// Sends a command, whose words are separated by spaces.
#[track_caller]
pub(crate) fn send(server: &Server, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    server.command::<()>(words).unwrap();
}

/// Returns `true` for Redis 6, whose scripts write regardless of `min-replicas-to-write`.
pub(crate) fn is_redis_6(server: &Server) -> bool {
    server.info("server").unwrap().contains("redis_version:6.")
}

/// Returns a port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Returns the number of keys that a server holds.
pub(crate) fn db_size(server: &Server) -> i64 {
    server.command(&["DBSIZE"]).unwrap()
}

/// Returns the output of a call that must end within this time. Time stands still while the machine is busy elsewhere: it is
/// counted in steps of the call's own runtime.
pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = T>) -> T {
    const STEP: Duration = Duration::from_millis(10);
    let late = async {
        for _ in 0..limit.as_millis() / STEP.as_millis() {
            tokio::time::sleep(STEP).await;
        }
    };
    tokio::select! {
        biased;
        output = call => output,
        () = late => panic!("a call took longer than {limit:?}"),
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// Applies an operation as it is. Without a limiter's policy, its own policy alone determines what an append keeps.
pub(crate) async fn run(store: &impl WindowStore, op: Op<'_>) -> Result<Decision, Error> {
    let op = op.checked()?;
    let facts = store.apply(op).await?;
    facts.verify(&op)?;
    Ok(decide(&op, facts))
}

/// The only errors that a server in trouble may cause.
#[track_caller]
pub(crate) fn assert_temporary(error: &Error) {
    let temporary =
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) && error.is_retryable();
    assert!(temporary, "{error:?}");
}

/// Returns how often each command was called since the last `CONFIG RESETSTAT`, by clients and scripts.
pub(crate) fn calls(server: &Server) -> BTreeMap<String, u64> {
    let stats = server.info("commandstats").unwrap();
    let call = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(call).collect()
}

pub(crate) fn reset_calls(server: &Server) {
    server.command::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
}

/// Returns the members that Redis holds for a log: callers' ids, and then the entries, oldest first.
pub(crate) fn members(server: &Server, store: &RedisStore, log: LogKey<'_>) -> Vec<Vec<u8>> {
    server
        .command(&[b"ZRANGE".as_slice(), &store.redis_key(log), b"0", b"-1"])
        .unwrap()
}

/// Returns a key's time to live in milliseconds.
pub(crate) fn ttl(server: &Server, store: &RedisStore, log: LogKey<'_>) -> i64 {
    server
        .command(&[b"PTTL".as_slice(), &store.redis_key(log)])
        .unwrap()
}
