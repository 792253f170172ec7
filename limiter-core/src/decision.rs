//! Facts into decisions.

use std::cmp::Reverse;
use std::time::Duration;
use std::{array, fmt};

use crate::{Entry, Facts, Limit, MAX_LIMITS, Mode, Op, Outcome, PerLimit, Receipt, Timestamp, Usage, Window};

/// The answer to an operation. All times are from the operation's own time on, in whole microseconds.
///
/// [`limit`](Self::limit), [`used`](Self::used), [`remaining`](Self::remaining) and
/// [`refill_after`](Self::refill_after) are those of the *binding* limit: of a denied operation the one to wait longest
/// for, else the one with the least remaining, and the first in the policy's order among equals.
/// [`limits`](Self::limits) has every limit's own.
///
/// It holds what the store has found, and computes the rest when asked: each answer takes a nanosecond or two, and a few
/// more under several limits.
#[derive(Clone, Copy)]
#[must_use = "a decision says whether to go on"]
pub struct Decision {
    denied: bool,
    /// A bit for each limit that denies the operation.
    blocking: u8,
    limits: PerLimit<Limit>,
    facts: Facts,
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
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// The cost that counts in the window, at most the limit's maximum.
    #[inline]
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// What is left of the maximum.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.limit.max() - self.used
    }

    /// How long this limit denies the operation; zero if it does not.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Duration {
        Duration::from_micros(self.retry_after)
    }

    /// Until the next unit of this limit frees; zero if nothing is used.
    #[inline]
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
        self.facts.admitted
    }

    /// The time of the decision: the operation's, but no earlier than the newest entry of the log.
    #[inline]
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.facts.now
    }

    /// The limit that binds.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.binding().limit
    }

    /// The cost that counts in the binding limit's window after the operation, at most the limit's maximum.
    #[inline]
    #[must_use]
    pub fn used(&self) -> u64 {
        self.binding().used
    }

    /// What is left of the binding limit after the operation.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.binding().remaining()
    }

    /// Of a denied acquire or peek: how long to wait until the same operation fits, if nothing else is recorded
    /// meanwhile. Waiting exactly that long succeeds, one microsecond less does not. `None` otherwise.
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // A repeated denial may find room by now; the soonest retry is still a microsecond away.
        self.denied.then(|| Duration::from_micros(self.binding().retry_after.max(1)))
    }

    /// Until the next unit of the binding limit frees; zero if nothing is used.
    #[inline]
    #[must_use]
    pub fn refill_after(&self) -> Duration {
        self.binding().refill_after()
    }

    /// Until nothing counts in any window any more; zero if nothing counts now.
    #[inline]
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        let left = |newest| self.longest_window().micros_left(newest, self.at());
        Duration::from_micros(self.facts.newest.map_or(0, left))
    }

    /// Names the appended entry, or for a repeated id the original one; `None` if the log holds none for the operation.
    #[inline]
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.entry().map(|entry| Receipt::new(entry.id, entry.at, self.longest_window()))
    }

    #[inline]
    fn longest_window(&self) -> Window {
        let first = self.limits[0].window();
        if self.limits.is_one() { first } else { self.limits.iter().fold(first, |longest, l| longest.max(l.window())) }
    }

    const fn entry(&self) -> Option<Entry> {
        match self.facts.outcome {
            Outcome::Nothing => None,
            Outcome::Appended(entry) | Outcome::Repeated(entry) => Some(entry),
        }
    }

    /// Every limit's own part, in the policy's order.
    #[must_use]
    pub fn limits(&self) -> PerLimit<LimitDecision> {
        let (limits, len) = self.limits.to_array::<MAX_LIMITS>();
        let (usage, _) = self.facts.usage.to_array::<MAX_LIMITS>();
        PerLimit::from_array(array::from_fn::<_, MAX_LIMITS, _>(|i| self.part(i, limits[i], usage[i])), len)
    }

    /// The index of the binding limit in [`limits`](Self::limits).
    #[inline]
    #[must_use]
    pub fn binding_index(&self) -> usize {
        if self.limits.is_one() { 0 } else { self.binding_of_several() }
    }

    #[inline]
    fn binding(&self) -> LimitDecision {
        let i = self.binding_index();
        self.part(i, self.limits[i], self.facts.usage.get(i).copied().unwrap_or_default())
    }

    #[inline(never)]
    fn binding_of_several(&self) -> usize {
        let pairs = self.limits.iter().zip(self.facts.usage.iter()).enumerate();
        let parts = pairs.map(|(i, (limit, usage))| (i, self.part(i, *limit, *usage)));
        // Of equals, both take the first.
        let binding = if self.denied {
            parts.min_by_key(|(_, part)| Reverse(part.retry_after))
        } else {
            parts.min_by_key(|(_, part)| part.remaining())
        };
        binding.map_or(0, |(i, _)| i)
    }

    /// The `i`-th limit's part.
    #[inline]
    fn part(&self, i: usize, limit: Limit, usage: Usage) -> LimitDecision {
        let blocked = self.blocking >> i & 1 > 0;
        LimitDecision {
            limit,
            used: usage.used.min(limit.max()),
            retry_after: if blocked { limit.window().micros_left(usage.blocker, self.at()) } else { 0 },
            refill_after: if usage.used > 0 { limit.window().micros_left(usage.oldest, self.at()) } else { 0 },
        }
    }
}

/// Decisions are equal if all that they tell is.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let told = |decision: &Self| {
            let times = (decision.at(), decision.reset_after());
            (decision.allowed(), decision.denied, times, decision.entry(), decision.limits())
        };
        told(self) == told(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("allowed", &self.allowed())
            .field("retry_after", &self.retry_after())
            .field("at", &self.at())
            .field("reset_after", &self.reset_after())
            .field("receipt", &self.receipt())
            .field("binding_index", &self.binding_index())
            .field("limits", &self.limits())
            .finish()
    }
}

/// Makes the decision on an operation of a store's facts. Pure; every decision of every backend is made here.
///
/// `facts` must be about `op`: [`Facts::verify`] tells.
#[inline]
pub fn decide(op: &Op<'_>, facts: &Facts) -> Decision {
    let (denied, blocking) = denial(op, facts.admitted, op.policy.limits(), &facts.usage);
    Decision { denied, blocking, limits: *op.policy.limits(), facts: *facts }
}

/// As [`decide`] for `N` limits: with a number that is known, nothing is copied but those.
#[doc(hidden)]
#[inline(always)]
pub fn decide_sized<const N: usize>(op: &Op<'_>, facts: &Facts) -> Decision {
    let Some(limits) = op.policy.limits().as_array::<N>() else { return decide_any(op, *facts) };
    let (usage, _) = facts.usage.to_array::<N>();
    let (denied, blocking) = denial(op, facts.admitted, limits, &usage);
    Decision { denied, blocking, limits: (*limits).into(), facts: Facts { usage: usage.into(), ..*facts } }
}

/// By value: that a pointer to them may leave would keep the facts from staying in registers.
#[cold]
#[inline(never)]
fn decide_any(op: &Op<'_>, facts: Facts) -> Decision {
    decide(op, &facts)
}

/// Whether the operation is denied, and by which limits.
#[inline(always)]
fn denial(op: &Op<'_>, admitted: bool, limits: &[Limit], usage: &[Usage]) -> (bool, u8) {
    if admitted || op.mode == Mode::Record {
        return (false, 0);
    }
    let blocks = |(limit, usage): (&Limit, &Usage)| usage.used.saturating_add(op.cost) > limit.max();
    (true, limits.iter().zip(usage).enumerate().map(|(i, pair)| u8::from(blocks(pair)) << i).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn decisions_are_equal_if_all_that_they_tell_is() {
        let limits = [Limit::per_second(2).unwrap(), Limit::per_minute(9).unwrap()];
        let policy = Policy::new(limits).unwrap();
        let op = Op::peek("", &policy).cost(2);
        let at = Timestamp::from_micros_saturating;
        let used = |used, oldest, blocker| Usage { used, oldest: at(oldest), blocker: at(blocker) };
        let decided = |second: Usage| {
            let usage = [used(1, 200, 200), second].into();
            let facts =
                Facts { now: at(500), admitted: false, outcome: Outcome::Nothing, newest: Some(at(400)), usage };
            facts.verify(&op).unwrap();
            let (decision, sized) = (decide(&op, &facts), decide_sized::<2>(&op, &facts));
            assert_eq!((decision, format!("{decision:?}")), (sized, format!("{sized:?}")));
            decision
        };
        let decision = decided(used(3, 100, 100));
        assert_eq!((decision.binding_index(), decision.retry_after()), (0, Some(Duration::from_micros(999_700))));
        // What blocks is of no interest where nothing does, nor what is oldest where there is nothing.
        assert_eq!(decision, decided(used(3, 100, 300)));
        assert_eq!(decided(used(0, 100, 300)), decided(used(0, 200, 400)));
        assert_ne!(decision, decided(used(2, 100, 100)));
        assert_ne!(decision, decided(used(3, 101, 100)));
        assert_ne!(decided(used(8, 100, 100)), decided(used(8, 100, 300)));
        assert_eq!(decided(used(8, 100, 100)).binding_index(), 1);
    }
}
