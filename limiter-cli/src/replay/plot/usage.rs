//! The usage of one key over time.

use limiter_core::{Decision, Limit, LimitStatus, Limiter, MAX_COST, Policy, Timestamp};
use limiter_memory::MemoryStore;

use super::axis::{COLUMNS, Span};
use crate::trace::Action;

/// The name and the key of the logs in memory.
const LOG: &str = "plot";

/// Usage as a share of the limit's maximum, within one pixel column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) first: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) last: f64,
}

/// The usage of one key, by pixel column. Every column keeps its minimum and maximum, so no peak is lost.
#[derive(Debug)]
pub(super) struct KeyUsage {
    span: Span,
    now: u64,
    /// What the limits count, and all that was requested.
    logs: [Limiter<MemoryStore>; 2],
    policy: Policy,
    /// The usage of each limit of the policy, then the units requested within the window, allowed or not, for the limit
    /// with the highest share.
    curves: Vec<Vec<Column>>,
    /// Whether a request was denied.
    pub(super) denied: Vec<bool>,
    /// Whether a request with the cost of an earlier denied one would also be denied.
    pub(super) blocked: Vec<bool>,
}

impl KeyUsage {
    pub(super) fn new(span: Span, policy: &Policy) -> anyhow::Result<Self> {
        // Demand frees as late as usage does.
        let meter = |limit: &Limit| {
            let exact = Limit::with_window(MAX_COST, limit.window())?;
            limit.resolution().map_or(Ok(exact), |resolution| exact.with_resolution(resolution))
        };
        let requested = Policy::new(policy.limits().iter().map(meter).collect::<Result<Vec<_>, _>>()?)?;
        let log = |policy: &Policy| Limiter::new(LOG, policy.clone(), MemoryStore::new());
        Ok(Self {
            span,
            now: 0,
            logs: [log(policy), log(&requested)],
            policy: policy.clone(),
            curves: vec![Vec::new(); policy.limits().len() + 1],
            denied: vec![false; COLUMNS as usize],
            blocked: vec![false; COLUMNS as usize],
        })
    }

    /// Returns the usage of each limit.
    pub(super) fn used(&self) -> &[Vec<Column>] {
        &self.curves[..self.policy.limits().len()]
    }

    /// Returns the units requested.
    pub(super) fn requested(&self) -> &[Column] {
        &self.curves[self.policy.limits().len()]
    }

    /// Returns the value of every curve at a time.
    fn shares(&self, at: u64) -> anyhow::Result<Vec<f64>> {
        let at = Timestamp::from_micros_saturating(at);
        let shares = |log: &Limiter<MemoryStore>| -> anyhow::Result<Vec<f64>> {
            let used = log.status(LOG).at(at).now()?.limits();
            let share = |(used, limit): (&LimitStatus, &Limit)| used.used() as f64 / limit.max() as f64;
            Ok(used.iter().zip(self.policy.limits()).map(share).collect())
        };
        let [used, requested] = &self.logs;
        let mut all = shares(used)?;
        all.push(shares(requested)?.into_iter().fold(0.0, f64::max));
        Ok(all)
    }

    /// Begins all columns up to a time.
    fn advance(&mut self, to: u64) -> anyhow::Result<()> {
        self.now = to.max(self.now);
        for column in self.requested().len() as u32..COLUMNS {
            let start = self.span.start(column, COLUMNS);
            if start > self.now {
                break;
            }
            let shares = self.shares(start)?;
            for (curve, share) in self.curves.iter_mut().zip(shares) {
                curve.push(Column { first: share, low: share, high: share, last: share });
            }
        }
        self.note()
    }

    /// Adds the present values to the newest column.
    fn note(&mut self) -> anyhow::Result<()> {
        if !(self.span.from..self.span.to).contains(&self.now) {
            return Ok(());
        }
        let shares = self.shares(self.now)?;
        for (curve, share) in self.curves.iter_mut().zip(shares) {
            if let Some(column) = curve.last_mut() {
                (column.low, column.high, column.last) = (column.low.min(share), column.high.max(share), share);
            }
        }
        Ok(())
    }

    pub(super) fn decided(&mut self, action: Action, cost: u64, decision: &Decision) -> anyhow::Result<()> {
        // A reset restarts a key's time, but the time of the plot continues.
        self.advance(decision.at().as_micros())?;
        let now = Timestamp::from_micros_saturating(self.now);
        for (log, counts) in self.logs.iter().zip([decision.appended(), action != Action::Peek]) {
            if counts {
                drop(log.record(LOG).cost(cost).at(now).now()?);
            }
        }
        if let Some(retry_after) = decision.retry_after() {
            let until = now.as_micros().saturating_add(u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX));
            self.deny(until);
        }
        self.note()
    }

    fn deny(&mut self, until: u64) {
        if until < self.span.from || self.now >= self.span.to {
            return;
        }
        let [first, last] = [self.now, until].map(|at| self.span.scale(at, COLUMNS) as usize);
        self.blocked.iter_mut().take(last + 1).skip(first).for_each(|blocked| *blocked = true);
        self.denied[first] |= self.now >= self.span.from;
    }

    pub(super) fn reset(&mut self, at: u64) -> anyhow::Result<()> {
        self.advance(at)?;
        for log in &self.logs {
            log.reset(LOG).now();
        }
        self.note()
    }

    /// Extends the usage to the end of the span.
    pub(super) fn finish(mut self) -> anyhow::Result<Self> {
        self.advance(self.span.to)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_shorter_than_a_column_is_kept() {
        let policy: Policy = "10/1us".parse().unwrap();
        let mut usage = KeyUsage::new(Span::new(1_000_000, 2_000_000), &policy).unwrap();
        let search = Limiter::new("search", policy, MemoryStore::new());
        for (at, cost) in [(999_999, 1), (1_500_000, 5), (1_500_001, 9), (1_500_002, 2), (3_000_000, 7)] {
            let at = Timestamp::from_micros(at).unwrap();
            usage.decided(Action::Acquire, cost, &search.acquire("k").cost(cost).at(at).now().unwrap()).unwrap();
        }
        let usage = usage.finish().unwrap();
        let columns = &usage.used()[0];
        assert_eq!((columns.len(), usage.requested().len()), (COLUMNS as usize, COLUMNS as usize));
        assert_eq!(columns[0], Column { first: 0.0, low: 0.0, high: 0.0, last: 0.0 });
        assert_eq!(columns[500], Column { first: 0.0, low: 0.0, high: 0.9, last: 0.2 });
        assert_eq!(columns[501].first, 0.0);
    }
}
