//! A log's other costs: settlements, renewals, and the longest append.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use limiter_core::{Limit, Limiter, Timestamp};
use limiter_redis::RedisStore;

use super::decider::limiter;
use super::run::Running;
use super::scenario::{Before, History, Measure};
use crate::record::{Figures, put};
use crate::turns::median;

/// The number of concurrent calls. They are in the order of the connection.
const BATCH: usize = 50;

impl Running<'_> {
    /// Measures a scenario without turns.
    pub(super) async fn measure_log(&self) -> Result<Figures> {
        let mut figures = Figures::new();
        let units = if let Before::Units(units) = self.scenario.before {
            units
        } else {
            0
        };
        let limiter = limiter(self.connection.clone(), "bench", self.policy.clone())?;
        let micros = match self.scenario.measure {
            Measure::WorstAppend(history) => self.worst_append(&limiter, history, units).await?,
            Measure::Renewal => self.renewal(&limiter, units).await?,
            _ => self.settlement(&limiter, units).await?,
        };
        put(&mut figures, "limiter", "script", micros);
        Ok(figures)
    }

    /// Returns the microseconds of the script in one call.
    async fn timed<T>(
        &self,
        call: impl IntoFuture<Output = Result<T, limiter_core::Error>>,
    ) -> Result<(T, f64)> {
        let before = self.script().await?;
        let output = call.await?;
        let after = self.script().await?;
        ensure!(
            after.0 == before.0 + 1,
            "{} scripts in one call",
            after.0 - before.0
        );
        Ok((output, (after.1 - before.1) as f64))
    }

    /// Returns the microseconds of the settlement of an entry with `newer` newer ones: the median of several, each of which has one
    /// newer entry more.
    async fn settlement(&self, limiter: &Limiter<RedisStore>, newer: u64) -> Result<f64> {
        let key = &self.keys[0];
        let mut receipts = Vec::new();
        let mut times = Vec::new();
        for _ in 0..21 {
            receipts.push(
                limiter
                    .acquire(key)
                    .cost(2)
                    .await?
                    .receipt()
                    .context("an acquire has a receipt")?,
            );
        }
        for first in (0..newer).step_by(BATCH) {
            let records =
                (first..newer.min(first + BATCH as u64)).map(|_| limiter.record(key).into_future());
            try_join_all(records).await?;
        }
        for (receipt, cost) in receipts
            .into_iter()
            .rev()
            .zip([1, 0, 3].into_iter().cycle())
        {
            let (settled, micros) = self.timed(limiter.settle(key, receipt, cost)).await?;
            ensure!(settled.applied(), "the log lacks the entry");
            times.push(micros);
        }
        Ok(median(&times))
    }

    /// Returns the microseconds of a renewal, as the holders of this many slots make them in turn: the median of several.
    async fn renewal(&self, limiter: &Limiter<RedisStore>, slots: u64) -> Result<f64> {
        let key = &self.keys[0];
        let mut receipts = VecDeque::new();
        let mut times = Vec::new();
        for _ in 0..slots {
            receipts.push_back(limiter.acquire(key).await?.receipt());
        }
        for _ in 0..101 {
            let oldest = receipts.pop_front().flatten();
            let oldest = oldest.context("an acquire has a receipt")?;
            let (renewed, micros) = self.timed(limiter.renew(key, oldest)).await?;
            ensure!(renewed.applied(), "the log lacks the entry");
            receipts.push_back(renewed.receipt());
            times.push(micros);
        }
        Ok(median(&times))
    }

    /// Fills a log with entries in four minutes. Returns the microseconds of the longest of the appends in the next half hour.
    async fn worst_append(
        &self,
        limiter: &Limiter<RedisStore>,
        history: History,
        entries: u64,
    ) -> Result<f64> {
        let key = &self.keys[0];
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_micros() as u64;
        let at = |micros: u64| Timestamp::from_micros(now - 3_600_000_000 + micros);
        let exact = Limit::new(self.policy.largest_max(), Duration::from_secs(3_600))?;
        let exact = &super::decider::limiter(self.connection.clone(), "bench", exact.into())?;
        let step = 240_000_000 / entries;
        for first in (0..entries).step_by(BATCH) {
            let append = |n: u64| {
                let at = at(n * step)?;
                let append = async move {
                    match history {
                        History::Permits => limiter.acquire(key).at(at).permit().await.map(drop),
                        History::Ids => limiter
                            .record(key)
                            .at(at)
                            .idempotency_key(u128::from(n))
                            .await
                            .map(drop),
                        History::Exact => exact.record(key).at(at).await.map(drop),
                    }
                };
                Ok(append)
            };
            let batch = first..entries.min(first + BATCH as u64);
            try_join_all(batch.map(append).collect::<Result<Vec<_>>>()?).await?;
        }
        let mut worst = 0_f64;
        for n in 0..60 {
            let at = at(entries * step + n * 30_000_000)?;
            worst = worst.max(self.timed(limiter.record(key).at(at)).await?.1);
        }
        Ok(worst)
    }
}
