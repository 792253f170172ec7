//! Measures clients: decisions per second and their latency, by the number of tasks that share one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use limiter_core::Limit;
use limiter_testkit::server::Server;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::contestants::{Contestant, Gcra, Noop, Ours, Rate, Trypema, connect};
use super::effort::Effort;
use super::server_time::Spread;
use super::server_version::at_least;

/// The numbers of tasks.
pub(super) const TASKS: [(&str, usize); 4] =
    [("clients/1", 1), ("clients/16", 16), ("clients/128", 128), ("clients/1024", 1024)];
const KEYS: usize = 1000;
const RATE: Rate = Rate { burst: 1_000_000, seconds: 60 };

/// The medians of a contestant's turns.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Served {
    /// The contestant.
    pub who: String,
    /// Decisions per second.
    pub rate: f64,
    /// The median latency in microseconds.
    pub half: f64,
    /// The 99th percentile of the latency in microseconds.
    pub most: f64,
    /// The ratio of this contestant's decisions per second to the limiter's, round by round.
    pub ratio: f64,
}

/// The results with one number of tasks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Load {
    /// The name, for example `clients/128`.
    pub name: String,
    /// The number of tasks.
    pub tasks: usize,
    /// The results by contestant, or the reason why there is none.
    pub served: Vec<(String, Result<Served, String>)>,
}

/// What clients saw in one turn: decisions per second, and the median and the 99th percentile of the latency in microseconds.
pub(super) struct Turn {
    pub(super) rate: f64,
    pub(super) half: f64,
    pub(super) most: f64,
}

/// Measures all contestants that support the server's version.
pub(super) async fn measure(server: &Server, (name, tasks): (&'static str, usize), effort: Effort) -> Result<Load> {
    let url = server.url();
    redis::cmd("FLUSHALL").exec_async(&mut connect(&url).await?).await?;
    let limit = Limit::new(RATE.burst, std::time::Duration::from_secs(RATE.seconds))?;
    let mut contestants: Vec<Arc<dyn Contestant>> = vec![
        Arc::new(Ours::new(connect(&url).await?, limit.into())?),
        Arc::new(Gcra::new(connect(&url).await?, RATE)),
        Arc::new(Noop::new(connect(&url).await?)),
    ];
    let (major, minor) = Trypema::NEEDS;
    let recent = at_least(&server.info("server")?, Trypema::NEEDS);
    if recent {
        contestants.push(Arc::new(Trypema::new(connect(&url).await?, RATE)?));
    }
    let keys: Arc<Vec<String>> = Arc::new((0..KEYS).map(|i| format!("user-{i:011}")).collect());
    let calls = if tasks == 1 { effort.client_calls } else { 4 * effort.client_calls };
    let mut turns: Vec<Vec<Turn>> = contestants.iter().map(|_| Vec::new()).collect();
    for round in 0..=effort.client_rounds {
        for turn in 0..contestants.len() {
            let who = (round + turn) % contestants.len();
            let done = offer(&contestants[who], &keys, tasks, calls, true).await;
            let done = done.with_context(|| contestants[who].name())?;
            // The first round loads the scripts and creates the keys.
            if round > 0 {
                turns[who].push(done);
            }
        }
    }
    let served = contestants.iter().zip(&turns).map(|(contestant, own)| {
        let median = |of: fn(&Turn) -> f64| Spread::of(own.iter().map(of)).median;
        let ratio = Spread::of(own.iter().zip(&turns[0]).map(|(own, ours)| own.rate / ours.rate)).median;
        let who = contestant.name().to_owned();
        (
            who.clone(),
            Ok(Served { who, rate: median(|t| t.rate), half: median(|t| t.half), most: median(|t| t.most), ratio }),
        )
    });
    let mut served: Vec<_> = served.collect();
    if !recent {
        served.push((Trypema::NAME.to_owned(), Err(format!("needs Redis {major}.{minor}"))));
    }
    Ok(Load { name: name.to_owned(), tasks, served })
}

/// Makes `calls` decisions from `tasks` concurrent tasks, and asserts each.
pub(super) async fn offer(
    contestant: &Arc<dyn Contestant>,
    keys: &Arc<Vec<String>>,
    tasks: usize,
    calls: usize,
    allowed: bool,
) -> Result<Turn> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    let start = Instant::now();
    for _ in 0..tasks {
        let (contestant, keys, next) = (Arc::clone(contestant), Arc::clone(keys), Arc::clone(&next));
        running.spawn(async move {
            let mut times = Vec::with_capacity(calls / tasks + 1);
            loop {
                let call = next.fetch_add(1, Ordering::Relaxed);
                if call >= calls {
                    return Ok(times);
                }
                // The step is prime to the number of keys, so every key is used equally often.
                let key = &keys[call * 617 % keys.len()];
                let start = Instant::now();
                contestant.decide(key, 1, allowed).await?;
                times.push(start.elapsed().as_nanos() as f64 / 1000.0);
            }
        });
    }
    let mut times = Vec::with_capacity(calls);
    while let Some(done) = running.join_next().await {
        let done: Result<Vec<f64>> = done?;
        times.extend(done?);
    }
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    Ok(Turn { rate, half: at(50), most: at(99) })
}
