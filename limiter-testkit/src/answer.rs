//! Decisions as plain data, and a second way to arrive at them.

use std::fmt;

use limiter_core::{Decision, Limit, Mode, Op, Timestamp, Window};

use crate::OracleEntry;

/// Every field of a [`Decision`] that stores must agree on: all but the store's own name of the entry. Times in
/// microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct Answer {
    pub allowed: bool,
    pub at: Timestamp,
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: Option<u64>,
    pub refill_after: u64,
    pub reset_after: u64,
    /// When the entry was appended, and for how long it counts.
    pub receipt: Option<(Timestamp, Window)>,
    pub binding: usize,
    pub limits: Vec<LimitAnswer>,
}

/// Every field of a [`LimitDecision`](limiter_core::LimitDecision). Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct LimitAnswer {
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: u64,
    pub refill_after: u64,
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        let limits = decision.limits().into_iter().map(|limit| LimitAnswer {
            limit: limit.limit(),
            used: limit.used(),
            remaining: limit.remaining(),
            retry_after: micros(limit.retry_after()),
            refill_after: micros(limit.refill_after()),
        });
        Self {
            allowed: decision.allowed(),
            at: decision.at(),
            limit: decision.limit(),
            used: decision.used(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after().map(micros),
            refill_after: micros(decision.refill_after()),
            reset_after: micros(decision.reset_after()),
            receipt: decision.receipt().map(|receipt| (receipt.at(), receipt.window())),
            binding: decision.binding_index(),
            limits: limits.collect(),
        }
    }
}

impl Answer {
    /// The answer by definition: every time in it is found by asking at each instant at which an entry leaves a window.
    ///
    /// `log` is the log after the operation, `now` the operation's clamped time, `allowed` the verdict, and `receipt`
    /// the time of the entry that the operation appended or repeats.
    #[must_use]
    pub fn by_definition(
        op: &Op<'_>,
        log: &[OracleEntry],
        now: Timestamp,
        allowed: bool,
        receipt: Option<Timestamp>,
    ) -> Self {
        let now_us = now.as_micros();
        let all: Vec<Limit> = op.policy.limits().to_vec();
        let used = |limit: &Limit, t: u64| -> u64 {
            let counts = |entry: &&OracleEntry| t - entry.at.as_micros() < limit.window().as_micros();
            log.iter().filter(counts).map(|entry| entry.cost).fold(0, u64::saturating_add)
        };
        let fits = |limit: &Limit, t: u64| used(limit, t).saturating_add(op.cost) <= limit.max();

        let leaving = log.iter().flat_map(|entry| all.iter().map(|l| entry.at.as_micros() + l.window().as_micros()));
        let mut later: Vec<u64> = leaving.chain([now_us + 1]).filter(|&t| t > now_us).collect();
        later.sort_unstable();
        later.dedup();
        // Everything has left at the last of these instants, so each search finds one.
        let first = |holds: &dyn Fn(u64) -> bool| later.iter().find(|&&t| holds(t)).map_or(u64::MAX, |t| t - now_us);

        let denied = !allowed && op.mode != Mode::Record;
        let limits: Vec<LimitAnswer> = all
            .iter()
            .map(|limit| {
                let full = used(limit, now_us);
                let remaining = |t: u64| limit.max().saturating_sub(used(limit, t));
                let blocks = denied && !fits(limit, now_us);
                LimitAnswer {
                    limit: *limit,
                    used: full.min(limit.max()),
                    remaining: remaining(now_us),
                    retry_after: if blocks { first(&|t| fits(limit, t)) } else { 0 },
                    refill_after: if full > 0 { first(&|t| remaining(t) > remaining(now_us)) } else { 0 },
                }
            })
            .collect();
        let mut binding = 0;
        for (i, limit) in limits.iter().enumerate() {
            let best = &limits[binding];
            let binds = if denied { limit.retry_after > best.retry_after } else { limit.remaining < best.remaining };
            binding = if binds { i } else { binding };
        }
        let nothing_counts = |t: u64| all.iter().all(|limit| used(limit, t) == 0);
        let longest = all.iter().map(Limit::window).max().unwrap_or(Window::MIN);
        let bound = limits[binding];
        Self {
            allowed,
            at: now,
            limit: bound.limit,
            used: bound.used,
            remaining: bound.remaining,
            retry_after: denied.then(|| first(&|t| all.iter().all(|limit| fits(limit, t)))),
            refill_after: bound.refill_after,
            reset_after: if nothing_counts(now_us) { 0 } else { first(&nothing_counts) },
            receipt: receipt.map(|at| (at, longest)),
            binding,
            limits,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "allowed" } else { "not allowed" };
        write!(f, "{verdict} at {}", self.at.as_micros())?;
        match self.retry_after {
            Some(retry) => write!(f, ", retry {retry}, ")?,
            None => write!(f, ", ")?,
        }
        write!(f, "reset {}", self.reset_after)?;
        for (i, limit) in self.limits.iter().enumerate() {
            let binds = if i == self.binding { "*" } else { "" };
            let LimitAnswer { limit, used, remaining, retry_after, refill_after } = limit;
            write!(f, "; {binds}{limit}: used {used}, remaining {remaining}, ")?;
            write!(f, "retry {retry_after}, refill {refill_after}")?;
        }
        match self.receipt {
            Some((at, window)) => write!(f, "; receipt at {} for {window}", at.as_micros()),
            None => write!(f, "; no receipt"),
        }
    }
}
