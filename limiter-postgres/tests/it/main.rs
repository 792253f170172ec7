//! The tests of the crate, in one program, with a real server.

mod conformance;
mod recovery;
mod settings;
mod url;

use std::sync::LazyLock;
use std::time::Duration;

use limiter_core::{Error, Limiter, policy};
use limiter_postgres::{PostgresStore, PostgresUrl};
use testbed::server::Postgres;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, NoTls, connect};

/// The server of the tests that change only their own logs.
static SERVER: LazyLock<Postgres> = LazyLock::new(|| Postgres::start().unwrap());

/// Longer than anything takes on a busy test machine, where a new connection may wait for many seconds.
const TIMEOUT: Duration = Duration::from_secs(50);

/// Returns a store with its own connections, like a process, whose timeouts a busy test machine does not reach.
fn store(url: &str) -> PostgresStore {
    let url: PostgresUrl = format!("{url}?pool=4&connect_timeout=50").parse().unwrap();
    PostgresStore::new(url.open_maintained().unwrap().timeout(TIMEOUT))
}

/// Returns a limiter as a program opens it.
fn opened(url: &str) -> Limiter<PostgresStore> {
    limiter(url, Duration::from_millis(500))
}

/// Returns a limiter whose requests do not time out on a busy test machine.
fn patient(url: &str) -> Limiter<PostgresStore> {
    limiter(url, TIMEOUT)
}

fn limiter(url: &str, timeout: Duration) -> Limiter<PostgresStore> {
    let url: PostgresUrl = url.parse().unwrap();
    let table = url.open_maintained().unwrap().timeout(timeout);
    Limiter::new("search", policy!("1000000/1h"), PostgresStore::new(table))
}

/// Returns a connection past the store.
async fn client(server: &Postgres) -> Client {
    let (client, connection) = connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs statements, separated by `; `, one by one.
async fn run(client: &Client, statements: &str) {
    for statement in statements.split("; ") {
        client.batch_execute(statement).await.unwrap();
    }
}

/// As with the default of a guarded store.
const PATIENCE: Duration = Duration::from_millis(300);

/// Waits for a call as a caller that leaves after [`PATIENCE`].
async fn shortly<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    let result = timeout(PATIENCE, call).await;
    result
        .map_err(|_| "late".to_owned())?
        .map_err(|error| error.to_string())
}

/// Acquires a unit, as a caller that leaves.
async fn acquire(search: &Limiter<PostgresStore>, key: &str) -> Result<(), String> {
    let decision = shortly(search.acquire(key).into_future()).await?;
    decision
        .is_allowed()
        .then_some(())
        .ok_or_else(|| "denied".to_owned())
}

/// Repeats an attempt until it succeeds. Panics after [`TIMEOUT`].
async fn eventually<T, E: std::fmt::Debug>(mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}
