//! Computes answers from the definitions alone.

use limiter_core::store::{Mode, Op};
use limiter_core::{Limit, Policy, Timestamp, Window};

use super::{Answer, LimitAnswer, StatusAnswer};
use crate::reference::ReferenceEntry;

/// The maximum lifetime of receipts if a limit has a resolution.
const KEPT_FOR: Window = match Window::from_micros(600_000_000) {
    Ok(window) => window,
    Err(_) => Window::MAX,
};

/// A log at one time.
struct LogAt<'a> {
    log: &'a [ReferenceEntry],
    now: u64,
    /// The instants after `now` at which an entry leaves a window. The log is empty at the last one.
    later: Vec<u64>,
}

impl<'a> LogAt<'a> {
    fn new(log: &'a [ReferenceEntry], limits: &[Limit], now: Timestamp) -> Self {
        let now = now.as_micros();
        let leaving = log.iter().flat_map(|entry| limits.iter().map(|l| entry.at.as_micros() + l.window().as_micros()));
        let mut later: Vec<u64> = leaving.chain([now + 1]).filter(|&t| t > now).collect();
        later.sort_unstable();
        later.dedup();
        Self { log, now, later }
    }

    fn used(&self, limit: &Limit, t: u64) -> u64 {
        let counts = |entry: &&ReferenceEntry| t - entry.at.as_micros() < limit.window().as_micros();
        self.log.iter().filter(counts).map(|entry| entry.cost).fold(0, u64::saturating_add)
    }

    fn remaining(&self, limit: &Limit, t: u64) -> u64 {
        limit.max().saturating_sub(self.used(limit, t))
    }

    /// Returns how long it takes until `holds` returns `true`.
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

/// Returns the index of the first item that no other item beats.
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
    /// Returns the answer by definition. Finds each time in it by checking every instant at which an entry leaves a
    /// window.
    ///
    /// `log` is the log after the operation, `now` its clamped time and `allowed` the verdict. `entry` is the time of
    /// the entry that the operation appended or repeated, and whether that entry is refundable.
    #[must_use]
    pub fn by_definition(
        op: &Op<'_>,
        log: &[ReferenceEntry],
        now: Timestamp,
        allowed: bool,
        entry: Option<(Timestamp, bool)>,
    ) -> Self {
        let limits = op.policy.limits();
        let log_at = LogAt::new(log, limits, now);
        let fits = |limit: &Limit, t: u64| log_at.used(limit, t).saturating_add(op.cost) <= limit.max();
        let denied = !allowed && op.mode != Mode::Record;
        let wait = |limit: &Limit| {
            let blocks = denied && !fits(limit, log_at.now);
            if blocks { log_at.until(|t| fits(limit, t)) } else { 0 }
        };
        let retry_after_each: Vec<u64> = limits.iter().map(wait).collect();
        let status = log_at.status(limits);
        let binding = if denied { first_best(&retry_after_each, |wait, best| wait > best) } else { status.binding };
        let bound = status.limits[binding];
        let policies = [Some(op.policy), op.limiter_policy].into_iter().flatten();
        let all: Vec<Limit> = policies.flat_map(Policy::limits).copied().collect();
        let longest = all.iter().map(Limit::window).max().unwrap_or(Window::MIN);
        let (has_receipt, window) = match all.iter().all(|limit| limit.resolution().is_none()) {
            true => (true, longest),
            false => (op.keep || op.id.is_some(), longest.min(KEPT_FOR)),
        };
        Self {
            allowed,
            limit: bound.limit,
            used: bound.used,
            remaining: bound.remaining,
            retry_after: denied.then(|| log_at.until(|t| limits.iter().all(|limit| fits(limit, t)))),
            refill_after: bound.refill_after,
            appended: entry.is_some(),
            receipt: entry.filter(|(_, refundable)| has_receipt && *refundable).map(|(at, _)| (at, window)),
            binding,
            retry_after_each,
            status,
        }
    }
}

impl StatusAnswer {
    /// Returns the status of `log` at `now` by definition.
    #[must_use]
    pub fn by_definition(policy: &Policy, log: &[ReferenceEntry], now: Timestamp) -> Self {
        LogAt::new(log, policy.limits(), now).status(policy.limits())
    }
}
