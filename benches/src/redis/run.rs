//! Runs one scenario: fills the server, and makes the turns of each contestant.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use limiter_core::{Limit, Policy, Timestamp};
use redis::aio::ConnectionManager;
use tokio::runtime::Runtime;

use super::decider::{Decider, connect, limiter};
use super::scenario::{Before, Measure, Scenario};
use super::{processor, scripts};
use crate::memory::workload::keys;
use crate::record::Figures;
use crate::turns::{self, Contestant, Turn};

/// The number of concurrent decisions.
const TASKS: usize = 50;
/// The number of decisions in a turn. Short turns: other load then interrupts few of them.
const CALLS: usize = 300;

/// Measures one scenario.
pub(super) fn measure(runtime: &Runtime, url: &str, scenario: &Scenario) -> Result<Figures> {
    let running = runtime.block_on(Running::new(url, scenario))?;
    if !matches!(scenario.measure, Measure::Decision | Measure::Bytes) {
        return runtime.block_on(running.measure_log());
    }
    let rounds = if scenario.measure == Measure::Bytes {
        1
    } else {
        151
    };
    if scenario.keys > 1 && !scenario.restore {
        let most = rounds * (CALLS + TASKS);
        ensure!(
            most <= scenario.keys,
            "each key is visited once at most: {most} visits of {} keys",
            scenario.keys
        );
    }
    let mut sides = Vec::new();
    for who in &scenario.who {
        sides.push(
            runtime
                .block_on(running.side(url, who))
                .with_context(|| who.clone())?,
        );
    }
    let contestants = sides.iter_mut().map(|side| Contestant {
        name: side.who,
        turn: Box::new(|| runtime.block_on(running.turn(side))),
    });
    turns::measure(&mut contestants.collect::<Vec<_>>(), |round| {
        round >= rounds
    })
}

/// A scenario on a server.
pub(super) struct Running<'a> {
    pub(super) connection: ConnectionManager,
    pub(super) scenario: &'a Scenario,
    pub(super) policy: Policy,
    pub(super) keys: Vec<String>,
}

/// A contestant, the number of its decisions, and the bytes of its filled key.
pub(super) struct Side<'a> {
    who: &'a str,
    decider: Decider,
    decisions: usize,
    bytes: Option<f64>,
}

impl<'a> Running<'a> {
    async fn new(url: &str, scenario: &'a Scenario) -> Result<Self> {
        let connection = connect(url).await?;
        let mut keys = keys(scenario.keys);
        fastrand::Rng::with_seed(0).shuffle(&mut keys);
        let mut running = Self {
            connection,
            scenario,
            policy: scenario.policy()?,
            keys,
        };
        // Redis 6.2 has only this name, and later versions keep it.
        let mut set = redis::cmd("CONFIG");
        set.arg("SET")
            .arg("zset-max-ziplist-entries")
            .arg(scenario.listpack);
        set.exec_async(&mut running.connection)
            .await
            .context("cannot set zset-max-ziplist-entries")?;
        running.flush().await?;
        if let Before::Sliding(entries) = scenario.before {
            running.policy = Limit::new(1_000_000, Duration::from_secs(3600))?.into();
            let mut side = running.connected(url, "limiter").await?;
            running.offer(&mut side, &running.keys, 500, true).await?;
            let start = Instant::now();
            running.offer(&mut side, &running.keys, 4000, true).await?;
            let window = start.elapsed() * u32::try_from(entries)? / 4000;
            let max = scenario.policy()?.largest_max();
            running.policy =
                Limit::new(max, Duration::from_micros(window.as_micros() as u64))?.into();
            running.flush().await?;
        }
        Ok(running)
    }

    async fn flush(&self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL")
            .exec_async(&mut self.connection.clone())
            .await?)
    }

    pub(super) async fn connected(&self, url: &str, who: &'a str) -> Result<Side<'a>> {
        let decider = Decider::new(who, self.scenario, &self.policy, connect(url).await?)?;
        Ok(Side {
            who,
            decider,
            decisions: 0,
            bytes: None,
        })
    }

    /// Connects a contestant, fills its first key, and copies that key to the others.
    async fn side(&self, url: &str, who: &'a str) -> Result<Side<'a>> {
        let mut side = self.connected(url, who).await?;
        let (Before::Units(units) | Before::Expired(units) | Before::Steady(units)) =
            self.scenario.before
        else {
            return Ok(side);
        };
        let key = &self.keys[0];
        match (self.scenario.before, who) {
            (_, "GCRA") => side.decider.decide(0, key, units, true).await?,
            (Before::Units(_), _) => {
                self.offer(&mut side, &self.keys[..1], units as usize, true)
                    .await?;
            }
            _ => {
                let limiter = limiter(self.connection.clone(), "bench", self.policy.clone())?;
                let step = self.policy.longest_window().as_micros() / units;
                let now = SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)?
                    .as_micros() as u64;
                let expired = matches!(self.scenario.before, Before::Expired(_));
                let end = if expired {
                    now - 1_000_000
                } else {
                    now + step / 2
                };
                for n in (1..=3 * units).rev() {
                    let at = Timestamp::from_micros(end - n * step)?;
                    let decision = limiter.acquire(key).cost(self.scenario.cost).at(at).await?;
                    ensure!(decision.is_allowed(), "{key} is full too early");
                }
            }
        }
        let copy = async |number: usize| {
            let mut copy = redis::cmd("COPY");
            copy.arg(side.decider.stored(key))
                .arg(side.decider.stored(&self.keys[number]));
            ensure!(
                copy.query_async::<bool>(&mut self.connection.clone())
                    .await?,
                "{key} could not be copied"
            );
            Ok(())
        };
        stream::iter(1..self.keys.len())
            .map(copy)
            .buffer_unordered(TASKS)
            .try_collect::<()>()
            .await?;
        let mut usage = redis::cmd("MEMORY");
        usage
            .arg("USAGE")
            .arg(side.decider.stored(key))
            .arg("SAMPLES")
            .arg(0);
        side.bytes = Some(usage.query_async(&mut self.connection.clone()).await?);
        Ok(side)
    }

    /// Makes one turn.
    async fn turn(&self, side: &mut Side<'_>) -> Result<Turn> {
        let Scenario {
            before,
            restore,
            denied,
            ..
        } = *self.scenario;
        let mut turn: Turn = side
            .bytes
            .map(|bytes| ("bytes", bytes))
            .into_iter()
            .collect();
        if self.scenario.measure == Measure::Decision {
            let warm_up = match before {
                // Enough for the window to pass since the contestant's last turn, and to fill again.
                Before::Sliding(entries) if side.who == "limiter" => 4 * entries as usize,
                _ => TASKS,
            };
            self.offer(side, &self.keys, warm_up, !denied).await?;
            let script = self.script().await?;
            let processor = self.processor().await?;
            self.offer(side, &self.keys, CALLS, !denied).await?;
            turn.push((
                "processor",
                (self.processor().await? - processor) / CALLS as f64,
            ));
            let after = self.script().await?;
            let scripts = after.0 - script.0;
            ensure!(
                scripts == (CALLS * side.decider.scripts()) as u64,
                "{scripts} scripts in {CALLS} decisions"
            );
            turn.push(("script", (after.1 - script.1) as f64 / CALLS as f64));
        }
        if side.who == "limiter" {
            let mut entries = redis::cmd("ZCARD");
            entries.arg(side.decider.stored(&self.keys[0]));
            turn.push((
                "entries",
                entries.query_async(&mut self.connection.clone()).await?,
            ));
        }
        if let (true, Before::Units(units)) = (restore, before) {
            for key in &self.keys {
                let mut trim = redis::cmd("ZREMRANGEBYRANK");
                trim.arg(side.decider.stored(key)).arg(units).arg(-1);
                trim.exec_async(&mut self.connection.clone()).await?;
            }
        }
        Ok(turn)
    }

    /// Makes `count` decisions, [`TASKS`] at the same time, and asserts each.
    pub(super) async fn offer(
        &self,
        side: &mut Side<'_>,
        keys: &[String],
        count: usize,
        allowed: bool,
    ) -> Result<()> {
        let first = side.decisions;
        side.decisions += count;
        let decide = |number: usize| {
            side.decider.decide(
                number,
                &keys[number % keys.len()],
                self.scenario.cost,
                allowed,
            )
        };
        stream::iter(first..side.decisions)
            .map(decide)
            .buffer_unordered(TASKS)
            .try_collect()
            .await
    }

    pub(super) async fn info(&self, section: &str) -> Result<String> {
        Ok(redis::cmd("INFO")
            .arg(section)
            .query_async(&mut self.connection.clone())
            .await?)
    }

    pub(super) async fn script(&self) -> Result<(u64, u64)> {
        Ok(scripts(&self.info("commandstats").await?))
    }

    /// Returns the microseconds of CPU time that the server has taken.
    async fn processor(&self) -> Result<f64> {
        processor(&self.info("cpu").await?)
    }
}
