//! The usage of one key over time.

use limiter_core::{Decision, Limit, MAX_COST, Policy};

use super::axis::{COLUMNS, Span};
use super::sliding::SlidingSum;
use super::steps::{Column, Steps};
use crate::trace::Action;

/// Collects the usage of one key.
#[derive(Debug)]
pub(super) struct UsageCollector {
    span: Span,
    now: u64,
    limits: Vec<LimitCollector>,
    requested: Steps,
    denied: Vec<u32>,
    blocked: Vec<bool>,
}

#[derive(Debug)]
struct LimitCollector {
    limit: Limit,
    used: SlidingSum,
    requested: SlidingSum,
    steps: Steps,
}

/// The usage of one key, by pixel column. Usage is a share of the limit's maximum.
#[derive(Debug)]
pub(super) struct KeyUsage {
    /// The usage of each limit of the policy.
    pub(super) used: Vec<Vec<Column>>,
    /// The units requested within the window, allowed or not, for the limit with the highest share.
    pub(super) requested: Vec<Column>,
    /// The number of denied requests.
    pub(super) denied: Vec<u32>,
    /// Where a request with the cost of an earlier denied one would also be denied.
    pub(super) blocked: Vec<bool>,
}

impl LimitCollector {
    fn share(&self, cost: u64) -> f64 {
        cost as f64 / self.limit.max() as f64
    }

    /// Removes everything that has expired at `now`.
    fn advance(&mut self, now: u64) {
        while let Some(at) = self.used.next_expiry().filter(|at| *at <= now) {
            self.used.remove_oldest();
            self.step(at);
        }
    }

    fn step(&mut self, at: u64) {
        self.steps.set(at, self.share(self.used.sum()).min(1.0));
    }
}

impl UsageCollector {
    pub(super) fn new(span: Span, policy: &Policy) -> Self {
        let follow = |&limit: &Limit| {
            let window = limit.window().as_micros();
            LimitCollector {
                limit,
                used: SlidingSum::new(window),
                requested: SlidingSum::new(window),
                steps: Steps::new(span),
            }
        };
        Self {
            span,
            now: 0,
            limits: policy.limits().iter().map(follow).collect(),
            requested: Steps::new(span),
            denied: vec![0; COLUMNS as usize],
            blocked: vec![false; COLUMNS as usize],
        }
    }

    fn advance(&mut self, now: u64) {
        for limit in &mut self.limits {
            limit.advance(now);
        }
        let next = |limits: &[LimitCollector]| {
            let leaving = limits.iter().enumerate().filter_map(|(i, limit)| Some((limit.requested.next_expiry()?, i)));
            leaving.min().filter(|(at, _)| *at <= now)
        };
        while let Some((at, i)) = next(&self.limits) {
            self.limits[i].requested.remove_oldest();
            self.step_requested(at);
        }
        self.now = now;
    }

    fn step_requested(&mut self, at: u64) {
        let shares = self.limits.iter().map(|limit| limit.share(limit.requested.sum()));
        self.requested.set(at, shares.fold(0.0, f64::max));
    }

    pub(super) fn decided(&mut self, action: Action, cost: u64, decision: &Decision) {
        // A reset restarts a key's time, but the time of the plot continues.
        let now = decision.at().as_micros().max(self.now);
        self.advance(now);
        let cost = cost.min(MAX_COST);
        for limit in &mut self.limits {
            if decision.receipt().is_some() {
                limit.used.add(now, cost);
                limit.step(now);
            }
            if action != Action::Peek {
                limit.requested.add(now, cost);
            }
        }
        self.step_requested(now);
        if let Some(retry_after) = decision.retry_after() {
            let until = now.saturating_add(u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX));
            self.denied(now, until);
        }
    }

    fn denied(&mut self, now: u64, until: u64) {
        if until < self.span.from || now >= self.span.to {
            return;
        }
        let (first, last) = (self.span.scale(now, COLUMNS) as usize, self.span.scale(until, COLUMNS) as usize);
        for blocked in self.blocked.iter_mut().take(last + 1).skip(first) {
            *blocked = true;
        }
        if now >= self.span.from {
            self.denied[first] += 1;
        }
    }

    pub(super) fn reset(&mut self, at: u64) {
        self.advance(at.max(self.now));
        for limit in &mut self.limits {
            limit.used.clear();
            limit.requested.clear();
            limit.step(self.now);
        }
        self.step_requested(self.now);
    }

    pub(super) fn finish(mut self) -> KeyUsage {
        self.advance(self.span.to.max(self.now));
        KeyUsage {
            used: self.limits.into_iter().map(|limit| limit.steps.finish()).collect(),
            requested: self.requested.finish(),
            denied: self.denied,
            blocked: self.blocked,
        }
    }
}
