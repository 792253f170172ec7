//! Decisions in Postgres, compared with a transaction that locks the row, on a server that waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use deadpool_postgres::tokio_postgres::NoTls;
use deadpool_postgres::tokio_postgres::types::ToSql;
use deadpool_postgres::{Manager, Pool, Runtime as PoolRuntime};
use futures::future::try_join_all;
use hdrhistogram::Histogram;
use limiter_core::store::{Log, LogKey, Op};
use limiter_core::{BoxFuture, Error, Limiter, Name, Policy, SharedStore, policy};
use limiter_log::{Change, Loaded, LogStore, Table, Timestamp, async_trait, stored_key};
use limiter_postgres::{PostgresTable, PostgresUrl};
use limiter_wrappers::Guarded;
use testbed::server::Postgres;
use tokio::runtime::Runtime;
use tokio::time::interval;

use crate::memory::workload::keys;
use crate::record::{Figures, put};
use crate::turns::{self, Contestant, Run, Turn};

/// The contestants. All decide in the same table.
pub(crate) const WHO: [&str; 3] = ["limiter", "with a lease", "FOR UPDATE"];
/// The numbers of keys and of connections.
pub(crate) const CELLS: [(usize, usize); 6] = [
    (1, 1),
    (1, 8),
    (1, 32),
    (10_000, 1),
    (10_000, 8),
    (10_000, 32),
];
/// The scenario of 10,000 decisions a second on one key with a lease.
pub(crate) const PACED: &str = "paced";
/// The scenario of the bytes of a row.
pub(crate) const BYTES: &str = "bytes";

/// The number of concurrent calls.
const TASKS: usize = 64;
const TURN: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 5;
/// Longer than any request takes, so that no call fails.
const PATIENCE: Duration = Duration::from_secs(30);
const PLAIN: Policy = policy!("1000000000/1h~10s");
const LEASED: Policy = policy!("1000000000/1h~10s+1s");
const LOCK: &str = "SELECT log, clock_timestamp() FROM limiter_logs WHERE key = $1 FOR UPDATE";
const SAVE: &str = "INSERT INTO limiter_logs VALUES ($1, $2, $3) ON CONFLICT (key) DO UPDATE SET log = $2, expires_at = $3";

/// Returns the name of a scenario.
pub(crate) fn name((keys, connections): (usize, usize)) -> String {
    format!("{keys}/{connections}")
}

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    let server = Postgres::start_durable().context("cannot start Postgres")?;
    let runtime = Runtime::new()?;
    let pool = pool(&server, 1)?;
    run.server = Some(runtime.block_on(async {
        table(&server, 1)?.create().await?;
        let version = pool
            .get()
            .await?
            .query_one("SHOW server_version", &[])
            .await?;
        let version: String = version.try_get(0)?;
        let number = version.split(' ').next().unwrap_or_default();
        anyhow::Ok(format!("Postgres {number}"))
    })?);
    for cell in CELLS {
        run.scenario(&name(cell), || measure_cell(&runtime, &server, cell))?;
    }
    run.scenario(PACED, || runtime.block_on(paced(&server)))?;
    run.scenario(BYTES, || runtime.block_on(bytes(&server)))
}

fn pool(server: &Postgres, size: usize) -> Result<Pool> {
    let manager = Manager::new(server.url().parse()?, NoTls);
    let pool = Pool::builder(manager).max_size(size);
    Ok(pool.runtime(PoolRuntime::Tokio1).build()?)
}

fn table(server: &Postgres, connections: usize) -> Result<PostgresTable> {
    let url: PostgresUrl = format!("{}?pool={connections}", server.url()).parse()?;
    Ok(url.open()?.timeout(PATIENCE))
}

/// Counts requests.
#[derive(Debug)]
struct Counted(PostgresTable, Arc<AtomicU64>);

#[async_trait]
impl Table for Counted {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        self.1.fetch_add(1, Relaxed);
        self.0.load(keys).await
    }

    async fn swap(&self, changes: Vec<Change>, until: Timestamp) -> Result<bool, Error> {
        self.1.fetch_add(1, Relaxed);
        self.0.swap(changes, until).await
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        self.0.spawn(worker);
    }

    fn workers(&self) -> usize {
        self.0.workers()
    }

    fn takes_several(&self) -> bool {
        true
    }
}

/// What decides.
#[derive(Clone)]
enum Decider {
    Limiter(Arc<Limiter<SharedStore>>),
    Locking(Pool, Name),
}

impl Decider {
    fn new(
        who: &str,
        server: &Postgres,
        connections: usize,
        requests: &Arc<AtomicU64>,
    ) -> Result<Self> {
        let table = table(server, connections)?;
        let store = LogStore::new(Counted(table, Arc::clone(requests)));
        // Each has its own rows.
        let limiter = |policy, store| Self::Limiter(Arc::new(Limiter::new(who, policy, store)));
        Ok(if who == WHO[0] {
            limiter(PLAIN, Arc::new(store) as SharedStore)
        } else if who == WHO[1] {
            let leased = Guarded::builder(store).timeout(PATIENCE).or_error();
            limiter(LEASED, Arc::new(leased) as SharedStore)
        } else {
            Self::Locking(pool(server, connections)?, Name::new(who))
        })
    }

    async fn decide(&self, key: &str) -> Result<()> {
        match self {
            Self::Limiter(limiter) => ensure!(limiter.acquire(key).await?.is_allowed(), "denied"),
            Self::Locking(pool, name) => {
                let key = stored_key(LogKey::new(*name, key));
                let mut client = pool.get().await?;
                let transaction = client.transaction().await?;
                let lock = transaction.prepare_cached(LOCK).await?;
                let save = transaction.prepare_cached(SAVE).await?;
                let (mut log, now) = match transaction.query_opt(&lock, &[&key]).await? {
                    Some(row) => (Log::from_bytes(row.try_get(0)?)?, row.try_get(1)?),
                    None => (Log::new(), SystemTime::now()),
                };
                let facts = log.apply(&Op::acquire("", &PLAIN), now.try_into()?);
                ensure!(facts.admitted, "denied");
                let expires_at = log.expires_at().unwrap_or_default().as_micros();
                let expires_at = SystemTime::UNIX_EPOCH + Duration::from_micros(expires_at);
                let values: [&(dyn ToSql + Sync); 3] = [&key, &log.to_bytes(), &expires_at];
                transaction.execute(&save, &values).await?;
                transaction.commit().await?;
            }
        }
        Ok(())
    }
}

fn measure_cell(runtime: &Runtime, server: &Postgres, cell: (usize, usize)) -> Result<Figures> {
    let keys = keys(cell.0);
    let requests = Arc::new(AtomicU64::new(0));
    let decider = |who| Ok((who, Decider::new(who, server, cell.1, &requests)?));
    let deciders: Vec<_> = WHO.into_iter().map(decider).collect::<Result<_>>()?;
    let contestants = deciders.iter().map(|(name, decider)| Contestant {
        name,
        turn: Box::new(|| turn(runtime, decider, &keys, &requests)),
    });
    let mut contestants: Vec<_> = contestants.collect();
    for contestant in &mut contestants {
        // Fills the table and the caches; blocks grow with use.
        (contestant.turn)()?;
    }
    turns::measure(&mut contestants, |round| round >= ROUNDS)
}

fn turn(
    runtime: &Runtime,
    decider: &Decider,
    keys: &[String],
    requests: &AtomicU64,
) -> Result<Turn> {
    let before = requests.load(Relaxed);
    let start = Instant::now();
    let task = |task: usize| {
        let decider = decider.clone();
        let keys = keys.to_vec();
        runtime.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            let mut latencies = Histogram::<u64>::new(3)?;
            while start.elapsed() < TURN {
                let begin = Instant::now();
                decider.decide(&keys[random.usize(..keys.len())]).await?;
                latencies += begin.elapsed().as_micros() as u64;
                // Decisions from a block do not wait, so other tasks would.
                tokio::task::yield_now().await;
            }
            anyhow::Ok(latencies)
        })
    };
    let all = runtime.block_on(try_join_all((0..TASKS).map(task)))?;
    let elapsed = start.elapsed().as_secs_f64();
    let mut latencies = Histogram::<u64>::new(3)?;
    for task in all {
        latencies.add(task?)?;
    }
    let decisions = latencies.len() as f64;
    Ok(vec![
        ("per second", decisions / elapsed),
        ("p99", latencies.value_at_quantile(0.99) as f64 / 1e3),
        (
            "requests",
            (requests.load(Relaxed) - before) as f64 / elapsed,
        ),
    ])
}

/// Makes 10,000 decisions a second on one key with a lease.
async fn paced(server: &Postgres) -> Result<Figures> {
    let requests = Arc::new(AtomicU64::new(0));
    let decider = Decider::new(WHO[1], server, 8, &requests)?;
    let mut ticks = interval(Duration::from_millis(1));
    let mut start = Instant::now();
    let mut before = 0;
    for tick in 0..6_000 {
        ticks.tick().await;
        if tick == 1_000 {
            // The block has grown.
            (start, before) = (Instant::now(), requests.load(Relaxed));
        }
        for _ in 0..10 {
            decider.decide("paced").await?;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let mut figures = Figures::new();
    let made = requests.load(Relaxed) - before;
    put(&mut figures, WHO[1], "per second", 50_000.0 / elapsed);
    put(&mut figures, WHO[1], "requests", made as f64 / elapsed);
    Ok(figures)
}

/// Measures the bytes of a row's log, by its entries.
async fn bytes(server: &Postgres) -> Result<Figures> {
    let client = pool(server, 1)?.get().await?;
    let table = table(server, 1)?;
    let bytes = Limiter::new("bytes", policy!("1000/1h"), LogStore::new(table));
    let mut figures = Figures::new();
    for entries in [10, 100, 1_000] {
        let key = entries.to_string();
        for _ in 0..entries {
            ensure!(bytes.acquire(&key).await?.is_allowed(), "denied");
        }
        let stored = stored_key(LogKey::new(Name::new("bytes"), &key));
        let length = "SELECT length(log)::float8 FROM limiter_logs WHERE key = $1";
        let row = client.query_one(length, &[&stored]).await?;
        let length: f64 = row.try_get(0)?;
        put(&mut figures, WHO[0], &key, length / f64::from(entries));
    }
    Ok(figures)
}
