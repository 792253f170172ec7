//! Answers as plain data, and a second way to arrive at them.

use std::fmt;
use std::time::Duration;

use limiter_core::store::{Mode, Op};
use limiter_core::{Decision, Limit, LimitStatus, Policy, Status, Timestamp, Window};

use crate::OracleEntry;

/// Every field of a [`Decision`] that stores must agree on: all but the store's own id of the entry. Times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct Answer {
    pub allowed: bool,
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: Option<u64>,
    pub refill_after: u64,
    /// When the entry was appended, and how long the log keeps it.
    pub receipt: Option<(Timestamp, Window)>,
    pub binding: usize,
    /// For each limit, how long it denies the operation; 0 if it does not.
    pub retry_after_each: Vec<u64>,
    pub status: StatusAnswer,
}

/// Every field of a [`Status`]. Times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the status's")]
pub struct StatusAnswer {
    pub at: Timestamp,
    pub reset_after: u64,
    pub binding: usize,
    pub limits: Vec<LimitAnswer>,
}

/// Every field of a [`LimitStatus`] but `retry_after`. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the status's")]
pub struct LimitAnswer {
    pub limit: Limit,
    pub used: u64,
    pub remaining: u64,
    pub refill_after: u64,
    pub reset_after: u64,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<&LimitStatus> for LimitAnswer {
    fn from(limit: &LimitStatus) -> Self {
        Self {
            limit: limit.limit(),
            used: limit.used(),
            remaining: limit.remaining(),
            refill_after: micros(limit.refill_after()),
            reset_after: micros(limit.reset_after()),
        }
    }
}

impl From<&Status> for StatusAnswer {
    fn from(status: &Status) -> Self {
        Self {
            at: status.at(),
            reset_after: micros(status.reset_after()),
            binding: status.binding_index(),
            limits: status.limits().iter().map(LimitAnswer::from).collect(),
        }
    }
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        Self {
            allowed: decision.allowed(),
            limit: decision.limit(),
            used: decision.used(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after().map(micros),
            refill_after: micros(decision.refill_after()),
            receipt: decision.receipt().map(|receipt| (receipt.at(), receipt.window())),
            binding: decision.binding_index(),
            retry_after_each: decision.limits().iter().map(|limit| limit.retry_after().map_or(0, micros)).collect(),
            status: decision.status().into(),
        }
    }
}

/// A log at a time, asked by the definitions alone.
struct Asked<'a> {
    log: &'a [OracleEntry],
    now: u64,
    /// The instants after `now` at which an entry leaves a window. Everything has left at the last one.
    later: Vec<u64>,
}

impl<'a> Asked<'a> {
    fn new(log: &'a [OracleEntry], limits: &[Limit], now: Timestamp) -> Self {
        let now = now.as_micros();
        let leaving = log.iter().flat_map(|entry| limits.iter().map(|l| entry.at.as_micros() + l.window().as_micros()));
        let mut later: Vec<u64> = leaving.chain([now + 1]).filter(|&t| t > now).collect();
        later.sort_unstable();
        later.dedup();
        Self { log, now, later }
    }

    fn used(&self, limit: &Limit, t: u64) -> u64 {
        let counts = |entry: &&OracleEntry| t - entry.at.as_micros() < limit.window().as_micros();
        self.log.iter().filter(counts).map(|entry| entry.cost).fold(0, u64::saturating_add)
    }

    fn remaining(&self, limit: &Limit, t: u64) -> u64 {
        limit.max().saturating_sub(self.used(limit, t))
    }

    /// How long until `holds` does.
    fn until(&self, holds: impl Fn(u64) -> bool) -> u64 {
        self.later.iter().find(|&&t| holds(t)).map_or(u64::MAX, |t| t - self.now)
    }

    fn limit(&self, limit: &Limit) -> LimitAnswer {
        let (now, full) = (self.now, self.used(limit, self.now));
        let gains = |t: u64| self.remaining(limit, t) > self.remaining(limit, now);
        LimitAnswer {
            limit: *limit,
            used: full.min(limit.max()),
            remaining: self.remaining(limit, now),
            refill_after: if full > 0 { self.until(gains) } else { 0 },
            reset_after: if full > 0 { self.until(|t| self.used(limit, t) == 0) } else { 0 },
        }
    }

    fn status(&self, limits: &[Limit]) -> StatusAnswer {
        let answers: Vec<LimitAnswer> = limits.iter().map(|limit| self.limit(limit)).collect();
        let nothing_counts = |t: u64| limits.iter().all(|limit| self.used(limit, t) == 0);
        StatusAnswer {
            at: Timestamp::from_micros_saturating(self.now),
            reset_after: if nothing_counts(self.now) { 0 } else { self.until(nothing_counts) },
            binding: first_best(&answers, |limit, best| limit.remaining < best.remaining),
            limits: answers,
        }
    }
}

/// The index of the first item that no other one beats.
fn first_best<T>(items: &[T], beats: impl Fn(&T, &T) -> bool) -> usize {
    let mut best = 0;
    for (i, item) in items.iter().enumerate() {
        if beats(item, &items[best]) {
            best = i;
        }
    }
    best
}

impl Answer {
    /// The answer by definition: every time in it is found by asking at each instant at which an entry leaves a window.
    ///
    /// `log` is the log after the operation, `now` the operation's clamped time, `allowed` the verdict, and `receipt` the time
    /// of the entry that the operation appended or repeats.
    #[must_use]
    pub fn by_definition(
        op: &Op<'_>,
        log: &[OracleEntry],
        now: Timestamp,
        allowed: bool,
        receipt: Option<Timestamp>,
    ) -> Self {
        let limits = op.policy.limits();
        let asked = Asked::new(log, limits, now);
        let fits = |limit: &Limit, t: u64| asked.used(limit, t).saturating_add(op.cost) <= limit.max();
        let denied = !allowed && op.mode != Mode::Record;
        let wait = |limit: &Limit| {
            let blocks = denied && !fits(limit, asked.now);
            if blocks { asked.until(|t| fits(limit, t)) } else { 0 }
        };
        let retry_after_each: Vec<u64> = limits.iter().map(wait).collect();
        let status = asked.status(limits);
        let binding = if denied { first_best(&retry_after_each, |wait, best| wait > best) } else { status.binding };
        let bound = status.limits[binding];
        let readers = [Some(op.policy), op.limiter_policy].into_iter().flatten();
        let kept_for = readers.flat_map(Policy::limits).map(Limit::window).max().unwrap_or(Window::MIN);
        Self {
            allowed,
            limit: bound.limit,
            used: bound.used,
            remaining: bound.remaining,
            retry_after: denied.then(|| asked.until(|t| limits.iter().all(|limit| fits(limit, t)))),
            refill_after: bound.refill_after,
            receipt: receipt.map(|at| (at, kept_for)),
            binding,
            retry_after_each,
            status,
        }
    }
}

impl StatusAnswer {
    /// The status of `log` at `now` by definition.
    #[must_use]
    pub fn by_definition(policy: &Policy, log: &[OracleEntry], now: Timestamp) -> Self {
        Asked::new(log, policy.limits(), now).status(policy.limits())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, binding: usize, retry: &[u64]) -> fmt::Result {
        write!(f, "reset {}", self.reset_after)?;
        for (i, limit) in self.limits.iter().enumerate() {
            let binds = if i == binding { "*" } else { "" };
            let LimitAnswer { limit, used, remaining, refill_after, reset_after } = limit;
            write!(f, "; {binds}{limit}: used {used}, remaining {remaining}, ")?;
            if let Some(retry) = retry.get(i) {
                write!(f, "retry {retry}, ")?;
            }
            write!(f, "refill {refill_after}, reset {reset_after}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "allowed" } else { "not allowed" };
        write!(f, "{verdict} at {}, ", self.status.at.as_micros())?;
        if let Some(retry) = self.retry_after {
            write!(f, "retry {retry}, ")?;
        }
        self.status.write(f, self.binding, &self.retry_after_each)?;
        match self.receipt {
            Some((at, window)) => write!(f, "; receipt at {} for {window}", at.as_micros()),
            None => write!(f, "; no receipt"),
        }
    }
}

impl fmt::Display for StatusAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}, ", self.at.as_micros())?;
        self.write(f, self.binding, &[])
    }
}
