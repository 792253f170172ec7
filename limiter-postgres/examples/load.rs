//! Decisions a second, compared with a transaction that locks the row: `cargo run --release -p limiter-postgres --example load`.
//!
//! Starts its own Postgres. All calls are admitted. 64 tasks call as fast as they can.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use limiter_core::store::{Log, LogKey, Op};
use limiter_core::{Error, Limiter, Name, Policy, SharedStore, policy};
use limiter_log::{Change, Loaded, LogStore, Table, async_trait, stored_key};
use limiter_postgres::PostgresTable;
use limiter_postgres::deadpool_postgres::{Manager, Pool, Runtime, tokio_postgres::NoTls};
use limiter_wrappers::Guarded;
use testbed::server::Postgres;

const TIME: Duration = Duration::from_millis(2_500);
const TASKS: u32 = 64;
const PLAIN: Policy = policy!("1000000000/1h~10s");
const LEASED: Policy = policy!("1000000000/1h~10s+1s");
const LOCK: &str = "SELECT log, clock_timestamp() FROM limiter_logs WHERE key = $1 FOR UPDATE";
const SAVE: &str = "INSERT INTO limiter_logs VALUES ($1, $2, $3) ON CONFLICT (key) DO UPDATE SET log = $2, expires_at = $3";

/// Counts requests.
#[derive(Debug)]
struct Counted(PostgresTable, Arc<AtomicU64>);

#[async_trait]
impl Table for Counted {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        self.1.fetch_add(1, Relaxed);
        self.0.load(keys).await
    }

    async fn swap(&self, changes: Vec<Change>) -> Result<bool, Error> {
        self.1.fetch_add(1, Relaxed);
        self.0.swap(changes).await
    }
}

/// One decision in a transaction that locks the row.
async fn locked(pool: &Pool, key: &str) {
    let key = stored_key(LogKey::new(Name::new("load"), key));
    let mut client = pool.get().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let (lock, save) = (
        transaction.prepare_cached(LOCK).await.unwrap(),
        transaction.prepare_cached(SAVE).await.unwrap(),
    );
    let row = transaction.query_opt(&lock, &[&key]).await.unwrap();
    let (mut log, now) = row.map_or((Log::new(), SystemTime::now()), |row| {
        (Log::from_bytes(row.get(0)).unwrap(), row.get(1))
    });
    black_box(log.apply(&Op::acquire("", &PLAIN), now.try_into().unwrap()));
    let expires_at =
        SystemTime::UNIX_EPOCH + Duration::from_micros(log.expires_at().unwrap().as_micros());
    transaction
        .execute(&save, &[&key, &log.to_bytes(), &expires_at])
        .await
        .unwrap();
    transaction.commit().await.unwrap();
}

async fn measure(
    name: &str,
    keys: u32,
    connections: usize,
    requests: &AtomicU64,
    call: impl AsyncFn(String) + Clone + Send + 'static,
) {
    let before = requests.load(Relaxed);
    let begin = Instant::now();
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let call = call.clone();
            local.spawn_local(async move {
                let (mut waits, mut key) = (Vec::new(), task);
                while begin.elapsed() < TIME {
                    let start = Instant::now();
                    call((key % keys).to_string()).await;
                    waits.push(start.elapsed());
                    key = key.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                }
                waits
            })
        })
        .collect();
    local.await;
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await.unwrap());
    }
    let seconds = begin.elapsed().as_secs_f64();
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    let requests = (requests.load(Relaxed) - before) as f64 / seconds;
    println!(
        "| {name} | {keys} | {connections} | {:.0} | {:.1} | {requests:.0} |",
        waits.len() as f64 / seconds,
        p99.as_secs_f64() * 1e3
    );
}

#[tokio::main]
async fn main() {
    let server = Postgres::start().unwrap();
    println!(
        "| store | keys | connections | decisions/s | p99, ms | requests/s |\n|---|---:|---:|---:|---:|---:|"
    );
    let requests = Arc::new(AtomicU64::new(0));
    for keys in [1, 10_000] {
        for connections in [1, 8, 32] {
            let manager = Manager::new(server.url().parse().unwrap(), NoTls);
            let pool = Pool::builder(manager)
                .max_size(connections)
                .runtime(Runtime::Tokio1)
                .build()
                .unwrap();
            let table = PostgresTable::new(pool.clone()).timeout(Duration::from_secs(20));
            table.create().await.unwrap();
            let floor = pool.clone();
            measure(
                "FOR UPDATE",
                keys,
                connections,
                &requests,
                async move |key| locked(&floor, &key).await,
            )
            .await;
            let store = || LogStore::new(Counted(table.clone(), requests.clone()));
            let leased = Guarded::builder(store())
                .timeout(Duration::from_secs(20))
                .or_error();
            let stores: [(_, SharedStore, _); 2] = [
                ("limiter", Arc::new(store()), PLAIN),
                ("limiter, +1s", Arc::new(leased), LEASED),
            ];
            for (name, store, policy) in stores {
                let limiter = Arc::new(Limiter::new("load", policy, store));
                measure(name, keys, connections, &requests, async move |key| {
                    black_box(limiter.acquire(key).await.unwrap().is_allowed());
                })
                .await;
            }
        }
    }
    let manager = Manager::new(server.url().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager)
        .max_size(8)
        .runtime(Runtime::Tokio1)
        .build()
        .unwrap();
    let store = LogStore::new(Counted(PostgresTable::new(pool), requests.clone()));
    let hot = Limiter::new("paced", LEASED, Guarded::builder(store).or_error());
    let (begin, before) = (Instant::now(), requests.load(Relaxed));
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    for _ in 0..5_000 {
        ticks.tick().await;
        for _ in 0..10 {
            let _ = black_box(hot.acquire("one").await.unwrap());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "\n+1s, one key, paced: {:.0} decisions/s, {:.1} requests/s",
        50_000.0 / seconds,
        (requests.load(Relaxed) - before) as f64 / seconds
    );
}
