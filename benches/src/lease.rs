//! Decisions over Redis with and without a lease: speed, calls, and the share of its limit that a busy key admits.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{try_join, try_join_all};
use hdrhistogram::Histogram;
use limiter_core::{AllOf, Limit, Limiter};
use limiter_redis::RedisStore;
use limiter_wrappers::Guarded;
use testbed::server::Server;
use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time::interval;

use crate::memory::workload::keys;
use crate::record::{Figures, put};
use crate::redis::{connect, processor, scripts, store, version};
use crate::turns::{self, Contestant, Run, Turn};

/// A workload on limits that admit everything.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    keys: usize,
    rules: usize,
    /// Decisions a second. Without, each task decides as fast as it can.
    pace: Option<u32>,
}

pub(crate) const WORKLOADS: [Workload; 4] = [
    workload("hot", "one hot key", 1, 1, None),
    workload(
        "paced",
        "one key, 1,000 decisions a second",
        1,
        1,
        Some(1_000),
    ),
    workload("keys", "1,000 keys", 1_000, 1, None),
    workload(
        "rules",
        "five rules in one decision, 1,000 keys each",
        1_000,
        5,
        None,
    ),
];

const fn workload(
    name: &'static str,
    about: &'static str,
    keys: usize,
    rules: usize,
    pace: Option<u32>,
) -> Workload {
    Workload {
        name,
        about,
        keys,
        rules,
        pace,
    }
}

/// The contestants: the second one has no lease.
pub(crate) const WHO: [&str; 2] = ["limiter", "without a lease"];
/// The scenario of a key at its limit, with a lease of a 64th of its window, and its measure.
pub(crate) const SATURATED: &str = "saturated";

/// The number of concurrent tasks.
const TASKS: usize = 50;
const TURN: Duration = Duration::from_millis(500);

type Store = Guarded<RedisStore>;

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    let server = Server::start().context("cannot start a server for the leases")?;
    run.server = Some(version(&server.info("server")?));
    let runtime = Runtime::new()?;
    for workload in &WORKLOADS {
        run.scenario(workload.name, || workload.measure(&runtime, &server))?;
    }
    run.scenario(SATURATED, || runtime.block_on(saturated(&server.url())))
}

/// Returns limiters over one guarded store.
async fn limiters(url: &str, who: &str, limit: Limit, count: usize) -> Result<Vec<Limiter<Store>>> {
    let store = Guarded::builder(store(connect(url).await?)?)
        .timeout(Duration::MAX)
        .or_error();
    let limiter = |n| Limiter::new(format!("{who} {n}"), limit, store.clone());
    Ok((0..count).map(limiter).collect())
}

impl Workload {
    fn measure(&self, runtime: &Runtime, server: &Server) -> Result<Figures> {
        let limit = Limit::new(1_000_000_000, Duration::from_secs(60))?;
        let keys = keys(self.keys);
        let side = |who, limit| {
            let limiters = runtime.block_on(limiters(&server.url(), who, limit, self.rules))?;
            anyhow::Ok((who, limiters))
        };
        let sides = [
            side(WHO[0], limit.with_lease(Duration::from_secs(1))?)?,
            side(WHO[1], limit)?,
        ];
        let mut contestants = sides.each_ref().map(|(name, limiters)| Contestant {
            name,
            turn: Box::new(|| self.turn(runtime, server, limiters, &keys)),
        });
        for contestant in &mut contestants {
            // Blocks grow with use.
            (contestant.turn)()?;
        }
        turns::measure(&mut contestants, |round| round >= 15)
    }

    fn turn(
        &self,
        runtime: &Runtime,
        server: &Server,
        limiters: &[Limiter<Store>],
        keys: &[String],
    ) -> Result<Turn> {
        let used = || {
            anyhow::Ok((
                scripts(&server.info("commandstats")?).0,
                processor(&server.info("cpu")?)?,
            ))
        };
        let before = used()?;
        let start = Instant::now();
        let tasks = (0..if self.pace.is_some() { 1 } else { TASKS })
            .map(|task| self.task(start + TURN, task, limiters.to_vec(), keys.to_vec()));
        let all = runtime.block_on(try_join_all(tasks.map(|task| runtime.spawn(task))))?;
        let elapsed = start.elapsed();
        let after = used()?;
        let mut latencies = Histogram::<u64>::new(3)?;
        for task in all {
            latencies.add(task?)?;
        }
        let decisions = latencies.len() as f64;
        Ok(vec![
            ("per second", decisions / elapsed.as_secs_f64()),
            ("time", elapsed.as_secs_f64() * 1e6 / decisions),
            ("half", latencies.value_at_quantile(0.5) as f64 / 1e3),
            ("calls", (after.0 - before.0) as f64 / decisions),
            ("processor", (after.1 - before.1) / decisions),
        ])
    }

    /// Decides until `end`. Returns the latencies in ns.
    fn task(
        &self,
        end: Instant,
        task: usize,
        limiters: Vec<Limiter<Store>>,
        keys: Vec<String>,
    ) -> impl Future<Output = Result<Histogram<u64>>> + Send + 'static {
        let pace = self.pace;
        async move {
            let mut latencies = Histogram::new(3)?;
            let mut ticks = pace.map(|pace| interval(Duration::from_secs(1) / pace));
            let mut random = fastrand::Rng::with_seed(task as u64);
            while Instant::now() < end {
                match &mut ticks {
                    Some(ticks) => drop(ticks.tick().await),
                    // Decisions from a block do not wait, so other tasks would.
                    None if latencies.len() % 16 == 0 => yield_now().await,
                    None => {}
                }
                let key = &keys[random.usize(..keys.len())];
                let start = Instant::now();
                let allowed = if let [limiter] = &limiters[..] {
                    limiter.acquire(key).await?.is_allowed()
                } else {
                    let all = limiters
                        .iter()
                        .fold(AllOf::new(), |all, limiter| all.with(limiter.acquire(key)));
                    !all.await?.is_denied()
                };
                ensure!(allowed, "{key} is denied");
                latencies += start.elapsed().as_nanos() as u64;
            }
            Ok(latencies)
        }
    }
}

/// Returns the share of its limit that a key admits which is asked for twice as much, in percent.
async fn saturated(url: &str) -> Result<Figures> {
    let window = Duration::from_millis(6_400);
    let limit = Limit::new(10_000, window)?;
    let share = async |who, limit: Limit| {
        let limiter = limiters(url, who, limit, 1).await?.remove(0);
        let mut ticks = interval(window / 20_000);
        // From when the limit is used up for the first time to when as much was admitted four times.
        let mut admitted = 0;
        let mut first = Instant::now();
        while admitted < 4 * limit.max() {
            ticks.tick().await;
            if limiter.acquire("key").await?.is_allowed() {
                admitted += 1;
                if admitted == limit.max() {
                    first = Instant::now();
                }
            }
        }
        anyhow::Ok(100.0 * 3.0 * window.as_secs_f64() / first.elapsed().as_secs_f64())
    };
    let lease = limit.with_lease(window / 64)?;
    let (with, without) = try_join(share(WHO[0], lease), share(WHO[1], limit)).await?;
    let mut figures = Figures::new();
    put(&mut figures, WHO[0], "share", with);
    put(&mut figures, WHO[1], "share", without);
    Ok(figures)
}
