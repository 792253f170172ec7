//! Facts into decisions.

use std::time::Duration;

use crate::time::rarely;
use crate::{Entry, Facts, Limit, MAX_LIMITS, Mode, Op, Outcome, PerLimit, Receipt, Timestamp};

/// The answer to an operation. All times are from the operation's own time on, in whole microseconds.
///
/// [`limit`](Self::limit), [`used`](Self::used), [`remaining`](Self::remaining) and
/// [`refill_after`](Self::refill_after) are those of the *binding* limit: of a denied operation the one to wait longest
/// for, else the one with the least remaining, and the first in the policy's order among equals.
/// [`limits`](Self::limits) has every limit's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision says whether to go on"]
pub struct Decision {
    allowed: bool,
    denied: bool,
    binding: u8,
    at: Timestamp,
    reset_after: u64,
    entry: Option<Entry>,
    limits: PerLimit<LimitDecision>,
}

/// One limit's part in a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    limit: Limit,
    used: u64,
    retry_after: u64,
    refill_after: u64,
}

impl LimitDecision {
    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// The cost that counts in the window, at most the limit's maximum.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// What is left of the maximum.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.limit.max() - self.used
    }

    /// How long this limit denies the operation; zero if it does not.
    #[must_use]
    pub const fn retry_after(&self) -> Duration {
        Duration::from_micros(self.retry_after)
    }

    /// Until the next unit of this limit frees; zero if nothing is used.
    #[must_use]
    pub const fn refill_after(&self) -> Duration {
        Duration::from_micros(self.refill_after)
    }
}

impl Decision {
    /// Whether the operation fitted every limit. For a record: whether it would have.
    #[inline]
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.allowed
    }

    /// The time of the decision: the operation's, but no earlier than the newest entry of the log.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The limit that binds.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.binding().limit
    }

    /// The cost that counts in the binding limit's window after the operation, at most the limit's maximum.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.binding().used
    }

    /// What is left of the binding limit after the operation.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.binding().remaining()
    }

    /// Of a denied acquire or peek: how long to wait until the same operation fits, if nothing else is recorded
    /// meanwhile. Waiting exactly that long succeeds, one microsecond less does not. `None` otherwise.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // A repeated denial may find room by now; the soonest retry is still a microsecond away.
        self.denied.then(|| Duration::from_micros(self.binding().retry_after.max(1)))
    }

    /// Until the next unit of the binding limit frees; zero if nothing is used.
    #[must_use]
    pub fn refill_after(&self) -> Duration {
        self.binding().refill_after()
    }

    /// Until nothing counts in any window any more; zero if nothing counts now.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// Names the appended entry, or for a repeated id the original one; `None` if the log holds none for the operation.
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        let longest = self.limits.iter().map(|decided| decided.limit.window()).max()?;
        self.entry.map(|entry| Receipt::new(entry.id, entry.at, longest))
    }

    /// Every limit's own part, in the policy's order.
    #[must_use]
    pub fn limits(&self) -> &[LimitDecision] {
        &self.limits
    }

    /// The index of the binding limit in [`limits`](Self::limits).
    #[must_use]
    pub const fn binding_index(&self) -> usize {
        self.binding as usize
    }

    #[inline]
    fn binding(&self) -> &LimitDecision {
        self.limits.get(usize::from(self.binding)).unwrap_or(&self.limits[0])
    }
}

/// Computes the decision on an operation from a store's facts. Pure; every decision of every backend is computed here.
///
/// `facts` must be about `op`: [`Facts::verify`] tells.
#[inline(always)]
pub fn decide(op: &Op<'_>, facts: &Facts) -> Decision {
    match op.policy.limits().len() {
        1 => decide_sized::<1>(op, facts),
        _ => decide_several(op, *facts),
    }
}

/// The smaller one, which is rarely the other: a branch that is foretold need not wait for the usage.
#[inline(always)]
fn up_to(used: u64, max: u64) -> u64 {
    if used > max {
        rarely();
        return max;
    }
    used
}

/// Out of line, so that what is left to inline is short. By value: that a pointer to them may leave would keep the facts
/// from staying in registers.
#[inline(never)]
fn decide_several(op: &Op<'_>, facts: Facts) -> Decision {
    match op.policy.limits().len() {
        2 => decide_sized::<2>(op, &facts),
        3 => decide_sized::<3>(op, &facts),
        4 => decide_sized::<4>(op, &facts),
        _ => decide_sized::<MAX_LIMITS>(op, &facts),
    }
}

/// As [`decide`] for `N` limits, or for any number if `N` is [`MAX_LIMITS`]: with a number that is known, all of it can
/// be kept in registers.
#[doc(hidden)]
#[inline(always)]
pub fn decide_sized<const N: usize>(op: &Op<'_>, facts: &Facts) -> Decision {
    let now = facts.now;
    let denied = !facts.admitted && op.mode != Mode::Record;
    let len = if N == MAX_LIMITS { op.policy.limits().len().min(N) } else { N };
    let all = op.policy.first_limits::<N>();
    let (usages, _) = facts.usage.to_array::<N>();
    let mut limits = [LimitDecision { limit: all[0], used: 0, retry_after: 0, refill_after: 0 }; N];
    // What binds is not looked up in the limits: an array that is indexed by a variable is one in memory.
    let (mut binding, mut longest_retry, mut least_remaining) = (0, 0, u64::MAX);
    for (i, decided) in limits.iter_mut().enumerate().take(len) {
        let (limit, usage) = (all[i], usages[i]);
        let blocked = denied && usage.used.saturating_add(op.cost) > limit.max();
        let this = LimitDecision {
            limit,
            used: up_to(usage.used, limit.max()),
            retry_after: if blocked { limit.window().micros_left(usage.blocker, now) } else { 0 },
            refill_after: if usage.used > 0 { limit.window().micros_left(usage.oldest, now) } else { 0 },
        };
        *decided = this;
        let binds = if denied { this.retry_after > longest_retry } else { this.remaining() < least_remaining };
        if binds || N == 1 {
            (binding, longest_retry, least_remaining) = (i, this.retry_after, this.remaining());
        }
    }
    let longest = op.policy.longest_window();
    let entry = match facts.outcome {
        Outcome::Nothing => None,
        Outcome::Appended(entry) | Outcome::Repeated(entry) => Some(entry),
    };
    Decision {
        allowed: facts.admitted,
        denied,
        binding: binding as u8,
        at: now,
        reset_after: facts.newest.map_or(0, |newest| longest.micros_left(newest, now)),
        entry,
        limits: PerLimit::from_array(limits, len),
    }
}
