//! One key's usage over time.

use std::ops::Range;

use limiter_core::{Decision, Limit, LimitStatus, Limiter, MAX_COST, Policy, Timestamp};
use limiter_memory::MemoryStore;

use super::view::{COLUMNS, column_start};
use crate::trace::Action;

/// The name and the key of the logs in memory.
const LOG: &str = "plot";

/// One key's highest usage within each column of a time span.
#[derive(Debug)]
pub(super) struct KeyUsage {
    span: Range<u64>,
    now: u64,
    policy: Policy,
    /// One log for the limits, and one for all requests.
    logs: [Limiter<MemoryStore>; 2],
    /// For each limit, the highest usage by column, as a share of its maximum. The last row is the demand: all units requested
    /// within a window, for the limit with the highest share.
    shares: Vec<Vec<f64>>,
    /// Whether a request was denied, by column.
    pub(super) denied: Vec<bool>,
}

impl KeyUsage {
    pub(super) fn new(span: Range<u64>, policy: &Policy) -> anyhow::Result<Self> {
        // Demand falls as late as usage does.
        let meter = |limit: &Limit| {
            let exact = Limit::with_window(MAX_COST, limit.window())?;
            limit
                .resolution()
                .map_or(Ok(exact), |resolution| exact.with_resolution(resolution))
        };
        let requested = Policy::new(
            policy
                .limits()
                .iter()
                .map(meter)
                .collect::<Result<Vec<_>, _>>()?,
        )?;
        let log = |policy: &Policy| Limiter::new(LOG, policy.clone(), MemoryStore::new());
        Ok(Self {
            span,
            now: 0,
            policy: policy.clone(),
            logs: [log(policy), log(&requested)],
            shares: vec![Vec::new(); policy.limits().len() + 1],
            denied: vec![false; COLUMNS],
        })
    }

    /// Returns the usage of each limit.
    pub(super) fn used(&self) -> &[Vec<f64>] {
        &self.shares[..self.policy.limits().len()]
    }

    /// Returns the units requested.
    pub(super) fn requested(&self) -> &[f64] {
        &self.shares[self.policy.limits().len()]
    }

    pub(super) fn decided(
        &mut self,
        action: Action,
        cost: u64,
        decision: &Decision,
    ) -> anyhow::Result<()> {
        // A reset restarts a key's time, but the time of the plot continues.
        self.advance(decision.at().as_micros())?;
        let now = Timestamp::from_micros_saturating(self.now);
        for (log, counts) in self
            .logs
            .iter()
            .zip([decision.appended(), action != Action::Peek])
        {
            if counts {
                drop(log.record(LOG).cost(cost).at(now).now()?);
            }
        }
        if !self.span.contains(&self.now) {
            return Ok(());
        }
        let column = self.requested().len() - 1;
        self.denied[column] |= decision.retry_after().is_some();
        let present = self.present(self.now)?;
        for (shares, share) in self.shares.iter_mut().zip(present) {
            shares[column] = shares[column].max(share);
        }
        Ok(())
    }

    pub(super) fn reset(&mut self, at: u64) -> anyhow::Result<()> {
        self.advance(at)?;
        for log in &self.logs {
            log.reset(LOG).now()?;
        }
        Ok(())
    }

    /// Begins all columns up to a time. Between two decisions usage only falls, so each begins with its highest usage.
    pub(super) fn advance(&mut self, to: u64) -> anyhow::Result<()> {
        self.now = to.max(self.now);
        for column in self.requested().len()..COLUMNS {
            let start = column_start(&self.span, column);
            if start > self.now {
                break;
            }
            let present = self.present(start)?;
            self.shares
                .iter_mut()
                .zip(present)
                .for_each(|(shares, share)| shares.push(share));
        }
        Ok(())
    }

    /// Returns each limit's usage, and the demand, at a time.
    fn present(&self, at: u64) -> anyhow::Result<Vec<f64>> {
        let at = Timestamp::from_micros_saturating(at);
        let shares = |log: &Limiter<MemoryStore>| -> anyhow::Result<Vec<f64>> {
            let used = log.status(LOG).at(at).now()?.limits();
            let share =
                |(used, limit): (&LimitStatus, &Limit)| used.used() as f64 / limit.max() as f64;
            Ok(used.iter().zip(self.policy.limits()).map(share).collect())
        };
        let [used, requested] = &self.logs;
        let mut all = shares(used)?;
        all.push(shares(requested)?.into_iter().fold(0.0, f64::max));
        Ok(all)
    }
}
