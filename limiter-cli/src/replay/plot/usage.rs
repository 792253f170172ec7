//! One key's usage over time.

use limiter_core::{Decision, Limit, MAX_COST, Policy};

use super::axis::{COLUMNS, Span};
use super::sliding::Sliding;
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
    used: Sliding,
    requested: Sliding,
    steps: Steps,
}

/// One key's usage, by columns of the picture. Usage is a share of the limit's maximum.
#[derive(Debug)]
pub(super) struct KeyUsage {
    /// For every limit of the policy what is used of it.
    pub(super) used: Vec<Vec<Column>>,
    /// What was requested within the window, granted or not, of the limit of which that is the most.
    pub(super) requested: Vec<Column>,
    /// How many requests were denied.
    pub(super) denied: Vec<u32>,
    /// Where a request like one that was denied would have been denied too.
    pub(super) blocked: Vec<bool>,
}

impl LimitCollector {
    fn share(&self, cost: u64) -> f64 {
        cost as f64 / self.limit.max() as f64
    }

    /// Lets everything leave that is gone at `now`.
    fn advance(&mut self, now: u64) {
        while let Some(at) = self.used.next_leaves().filter(|at| *at <= now) {
            self.used.leave();
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
                used: Sliding::new(window),
                requested: Sliding::new(window),
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
            let leaving = limits.iter().enumerate().filter_map(|(i, limit)| Some((limit.requested.next_leaves()?, i)));
            leaving.min().filter(|(at, _)| *at <= now)
        };
        while let Some((at, i)) = next(&self.limits) {
            self.limits[i].requested.leave();
            self.step_requested(at);
        }
        self.now = now;
    }

    fn step_requested(&mut self, at: u64) {
        let shares = self.limits.iter().map(|limit| limit.share(limit.requested.sum()));
        self.requested.set(at, shares.fold(0.0, f64::max));
    }

    pub(super) fn decided(&mut self, action: Action, cost: u64, decision: &Decision) {
        // A reset lets a key's time begin anew; the picture's goes on.
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
