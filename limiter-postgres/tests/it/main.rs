//! The tests of the crate, in one program, with a real server.

mod conformance;
mod faults;

use std::sync::LazyLock;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool, Runtime};
use limiter_postgres::{PostgresStore, PostgresTable};
use testbed::server::Postgres;

/// The server of the tests that change only their own logs.
static SERVER: LazyLock<Postgres> = LazyLock::new(|| Postgres::start().unwrap());

/// Longer than anything takes on a busy test machine, where a new connection may wait for many seconds.
const TIMEOUT: Duration = Duration::from_secs(50);

fn pool(url: &str, size: usize) -> Pool {
    let manager = Manager::new(
        url.parse().unwrap(),
        deadpool_postgres::tokio_postgres::NoTls,
    );
    let pool = Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1);
    pool.build().unwrap()
}

/// Returns a table with its own pool, like a process.
async fn table(url: &str) -> PostgresTable {
    let table = PostgresTable::new(pool(url, 4)).timeout(TIMEOUT);
    table.create().await.unwrap();
    table
}

async fn store(url: &str) -> PostgresStore {
    PostgresStore::new(table(url).await)
}
