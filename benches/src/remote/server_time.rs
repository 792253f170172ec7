//! The server time per decision, as the server reports it: `usec` and `calls` of `EVALSHA`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use limiter_core::{Limit, Policy, Timestamp};
use limiter_testkit::server::Server;
use redis::aio::ConnectionManager;
use serde::{Deserialize, Serialize};

use super::contestants::{Contestant, Gcra, Noop, Ours, connect};
use super::effort::Effort;
use super::shapes::{Before, Shape};
use crate::workload::{Xorshift, keys};

/// The maximum number of operations in flight.
pub(super) const MAX_IN_FLIGHT: usize = 50;

/// The median and the quartiles.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Spread {
    /// The lower quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The upper quartile.
    pub high: f64,
}

impl Spread {
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |quarters| values.get(values.len() * quarters / 4).copied().unwrap_or(f64::NAN);
        Self { low: at(1), median: at(2), high: at(3) }
    }
}

/// The results of one scenario.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub name: String,
    /// The workload.
    pub about: String,
    /// The goal: the highest acceptable ratio.
    pub goal: Option<f64>,
    /// Microseconds per decision of this library.
    pub ours: f64,
    /// Microseconds per decision of the algorithm of `redis_rate`.
    pub gcra: f64,
    /// Microseconds per call of the no-op script.
    pub noop: f64,
    /// The ratio of this library's time to the time of `redis_rate`'s algorithm, round by round.
    pub ratio: Spread,
    /// The entries in this library's log of the first key at the end of a turn.
    pub entries: u64,
}

struct Turns<'a> {
    connection: ConnectionManager,
    shape: &'a Shape,
    keys: Arc<Vec<String>>,
    order: Vec<usize>,
    effort: Effort,
}

/// Measures one scenario.
pub(super) async fn measure(server: &Server, shape: &Shape, effort: Effort) -> Result<Row> {
    let connection = connect(&server.url()).await?;
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    if shape.many {
        let most = effort.rounds * (effort.calls + MAX_IN_FLIGHT);
        ensure!(most <= effort.keys, "each key is visited once at most: {most} visits of {} keys", effort.keys);
    }
    let keys = keys(if shape.many { effort.keys } else { 1 });
    let turns = Turns { order: shuffled(keys.len()), keys, connection, shape, effort };
    let policy = turns.policy().await?;
    let ours = Ours::new(turns.connection.clone(), policy)?;
    let gcra = Gcra::new(turns.connection.clone(), shape.rate);
    let noop = Noop::new(turns.connection.clone());
    turns.prepare_ours(&ours).await?;
    turns.prepare(&gcra).await?;
    let contestants: [&dyn Contestant; 3] = [&ours, &gcra, &noop];
    let mut next = [0; 3];
    let mut samples = [const { Vec::new() }; 3];
    let mut entries = Vec::new();
    for round in 0..effort.rounds {
        for turn in 0..3 {
            // Cycles through all orders.
            let who = (round + turn * (1 + round % 2)) % 3;
            samples[who].push(turns.turn(contestants[who], &mut next[who]).await?);
            if who == 0 {
                entries.push(turns.entries(&ours).await? as f64);
            }
        }
    }
    let ratios = samples[0].iter().zip(&samples[1]).map(|(ours, gcra)| ours / gcra).collect::<Vec<_>>();
    let [ours, gcra, noop] = samples.map(|samples| Spread::of(samples).median);
    let (name, about, goal) = (shape.name.to_owned(), shape.about.to_owned(), shape.goal);
    let entries = Spread::of(entries).median as u64;
    Ok(Row { name, about, goal, ours, gcra, noop, ratio: Spread::of(ratios), entries })
}

impl Turns<'_> {
    /// Returns the number of unmeasured decisions at the start of a turn.
    fn warm_up(&self, contestant: &dyn Contestant) -> usize {
        match self.shape.before {
            // Enough for the window to pass since the contestant's last turn, and to fill again.
            Before::Sliding(entries) if contestant.name() == Ours::NAME => 4 * entries as usize,
            _ => MAX_IN_FLIGHT,
        }
    }

    /// Runs one turn. Returns the server's microseconds per decision.
    async fn turn(&self, contestant: &dyn Contestant, next: &mut usize) -> Result<f64> {
        self.offer(contestant, next, self.warm_up(contestant)).await?;
        let (calls, spent) = self.spent().await?;
        self.offer(contestant, next, self.effort.calls).await?;
        let (calls, spent) = self.spent().await.map(|(c, s)| (c - calls, s - spent))?;
        let expected = self.effort.calls as u64;
        ensure!(calls == expected, "{}: {calls} calls, expected {expected}", contestant.name());
        Ok(spent as f64 / calls as f64)
    }

    /// Makes `count` decisions and asserts each.
    async fn offer(&self, contestant: &dyn Contestant, next: &mut usize, count: usize) -> Result<()> {
        let Shape { cost, allowed, .. } = *self.shape;
        for first in (0..count).step_by(MAX_IN_FLIGHT) {
            let flight = (*next..*next + MAX_IN_FLIGHT.min(count - first)).map(|i| {
                let key = &self.keys[self.order[i % self.order.len()]];
                contestant.decide(key, cost, allowed)
            });
            for done in join_all(flight).await {
                done.with_context(|| contestant.name())?;
            }
            *next += MAX_IN_FLIGHT.min(count - first);
        }
        Ok(())
    }

    /// Returns the number of calls of `EVALSHA` so far, and their microseconds.
    async fn spent(&self) -> Result<(u64, u64)> {
        let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut self.connection.clone()).await?;
        let field = |name| {
            let (_, line) = info.split_once("cmdstat_evalsha:")?;
            let field = line.lines().next()?.split(',').find_map(|field| field.strip_prefix(name));
            field?.parse().ok()
        };
        let both = field("calls=").zip(field("usec="));
        both.with_context(|| format!("INFO commandstats lacks calls and usec of evalsha:\n{info}"))
    }

    async fn entries(&self, ours: &Ours) -> Result<u64> {
        let stored = ours.stored(&self.keys[self.order[0]]);
        Ok(redis::cmd("ZCARD").arg(stored).query_async(&mut self.connection.clone()).await?)
    }

    /// Returns the scenario's policy. For a sliding log, finds the window by trial.
    async fn policy(&self) -> Result<Policy> {
        let Before::Sliding(entries) = self.shape.before else { return Ok(self.shape.policy.clone()) };
        let max = self.shape.policy.largest_max();
        let ours = Ours::new(self.connection.clone(), Limit::per_hour(1_000_000)?.into())?;
        let (mut next, count) = (0, 4000);
        self.offer(&ours, &mut next, 500).await?;
        let start = Instant::now();
        self.offer(&ours, &mut next, count).await?;
        let window = start.elapsed() * u32::try_from(entries)? / count as u32;
        redis::cmd("FLUSHALL").exec_async(&mut self.connection.clone()).await?;
        Ok(Limit::new(max, Duration::from_micros(window.as_micros() as u64))?.into())
    }

    /// Prepares every key: the limiter fills the first key, and `COPY` the others.
    async fn prepare_ours(&self, ours: &Ours) -> Result<()> {
        let limiter = &ours.0;
        let key = &self.keys[0];
        match self.shape.before {
            Before::Sliding(_) | Before::Units(0) => return Ok(()),
            Before::Units(units) => {
                for _ in 0..units {
                    ensure!(limiter.acquire(key).await?.allowed(), "{key} is used up too early");
                }
            }
            before @ (Before::Expired(entries) | Before::Steady(entries)) => {
                let step = limiter.policy().longest_window().as_micros() / entries;
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros() as u64;
                let end = if before == Before::Expired(entries) { now - 1_000_000 } else { now + step / 2 };
                for n in (1..=3 * entries).rev() {
                    let at = Timestamp::from_micros(end - n * step)?;
                    ensure!(limiter.acquire(key).at(at).await?.allowed(), "{key} is used up too early");
                }
            }
        }
        self.copy(|key| ours.stored(key)).await
    }

    async fn prepare(&self, gcra: &Gcra) -> Result<()> {
        let units = match self.shape.before {
            Before::Sliding(_) | Before::Units(0) => return Ok(()),
            Before::Units(units) | Before::Expired(units) | Before::Steady(units) => units,
        };
        gcra.decide(&self.keys[0], units, true).await?;
        self.copy(|key| Gcra::stored(key).into_bytes()).await
    }

    /// Copies the first key's data to all other keys.
    async fn copy(&self, stored: impl Fn(&str) -> Vec<u8>) -> Result<()> {
        let from = stored(&self.keys[0]);
        for part in self.keys[1..].chunks(MAX_IN_FLIGHT) {
            let copies = part.iter().map(|key| {
                let mut connection = self.connection.clone();
                let mut copy = redis::cmd("COPY");
                copy.arg(&from).arg(stored(key));
                async move { copy.query_async::<u64>(&mut connection).await }
            });
            ensure!(try_join_all(copies).await?.iter().all(|&done| done == 1), "a key could not be copied");
        }
        Ok(())
    }
}

/// The microseconds of processor time that the server has taken.
pub(super) async fn processor(connection: &ConnectionManager) -> Result<f64> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(&mut connection.clone()).await?;
    let of = |field: &str| {
        let seconds: f64 =
            info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok())?;
        Some(seconds * 1e6)
    };
    let both = of("used_cpu_user").zip(of("used_cpu_sys"));
    let (user, system) = both.with_context(|| format!("INFO cpu lacks used_cpu_user and used_cpu_sys:\n{info}"))?;
    Ok(user + system)
}

/// Returns the numbers below `count` in random order.
fn shuffled(count: usize) -> Vec<usize> {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, (random.next() >> 16) as usize % (i + 1));
    }
    order
}
