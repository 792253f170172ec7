//! A key's usage, as reported to callers.

use std::time::Duration;
use std::{array, fmt};

use crate::policy::Policy;
use crate::policy::limit::Limit;
use crate::policy::time::Timestamp;
use crate::store::facts::{LogFacts, Usage};
use crate::store::per_limit::PerLimit;

/// One key's usage of every limit of a policy, at one time.
///
/// [`limit`](Self::limit), [`used`](Self::used), [`remaining`](Self::remaining) and
/// [`refill_after`](Self::refill_after) describe the *binding* limit, which is the one with the least remaining. In a
/// [`Decision`](crate::Decision) that is a denial, it is the one with the longest wait. The first in the policy's order wins
/// ties. [`limits`](Self::limits) returns the values of every limit.
///
/// All durations start at [`at`](Self::at), or at the store's clock while that is [behind](Self::clock_behind), and are whole
/// microseconds. The feature `serde` writes it like a
/// [`Decision`](crate::Decision), without `allowed`.
#[derive(Clone)]
pub struct Status {
    now: Timestamp,
    /// The time from which waits count.
    pub(crate) clock: Timestamp,
    /// Unspecified if nothing counts.
    newest: Timestamp,
    limits: PerLimit<(Limit, Usage)>,
    pub(crate) verdict: Verdict,
}

/// Whether an operation fitted and has an entry, and which limits deny it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Verdict {
    /// Of a decision. Here, it takes no memory.
    pub(crate) entry: EntryKind,
    pub(crate) fits: bool,
    /// Whether its entry has a receipt, as [`Facts::refundable`](crate::store::Facts::refundable).
    pub(crate) refundable: bool,
    pub(crate) denied: bool,
    /// Bit `i` is set if limit `i` denies it.
    pub(crate) blocking: u8,
}

/// The kind of an [`Outcome`](crate::store::Outcome).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EntryKind {
    #[default]
    Nothing,
    Uncounted,
    Appended,
    Repeated,
}

/// The values of one limit in a [`Status`] or a [`Decision`](crate::Decision).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    pub(crate) limit: Limit,
    pub(crate) used: u64,
    pub(crate) retry_after: u64,
    pub(crate) refill_after: u64,
    pub(crate) reset_after: u64,
}

impl LimitStatus {
    /// Returns the limit.
    #[inline]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// Returns the cost counted in the window, capped at the limit's maximum.
    #[inline]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Returns the units that remain: the maximum minus [`used`](Self::used).
    #[inline]
    pub const fn remaining(&self) -> u64 {
        self.limit.max() - self.used
    }

    /// Returns how long this limit will deny the operation.
    ///
    /// `None` if this limit does not deny it, and always in a [`Status`] that is not of a denial.
    #[inline]
    pub const fn retry_after(&self) -> Option<Duration> {
        if self.retry_after == 0 {
            None
        } else {
            Some(Duration::from_micros(self.retry_after))
        }
    }

    /// Returns how long until [`remaining`](Self::remaining) next grows. Zero if nothing is used.
    #[inline]
    pub const fn refill_after(&self) -> Duration {
        Duration::from_micros(self.refill_after)
    }

    /// Returns how long until this limit's window is empty. Zero if it is empty now.
    #[inline]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }
}

impl Status {
    /// Returns the usage that `log` reports for the limits of `policy`.
    pub(crate) fn new(policy: &Policy, log: LogFacts, verdict: Verdict) -> Self {
        let LogFacts {
            now,
            clock,
            newest,
            usage,
        } = log;
        let newest = newest.unwrap_or_default();
        let limit = |i| policy.limits().get(i).copied().unwrap_or(Limit::UNUSED);
        Self {
            now,
            clock,
            newest,
            limits: PerLimit::from_fn(usage.len(), |i| (limit(i), usage[i])),
            verdict,
        }
    }

    /// Like [`new`](Self::new), for a number of limits known at compile time.
    #[inline(always)]
    pub(crate) fn sized<const N: usize>(
        limits: &[Limit; N],
        usage: [Usage; N],
        [now, clock]: [Timestamp; 2],
        newest: Option<Timestamp>,
        verdict: Verdict,
    ) -> Self {
        let newest = newest.unwrap_or_default();
        Self {
            now,
            clock,
            newest,
            limits: array::from_fn::<_, N, _>(|i| (limits[i], usage[i])).into(),
            verdict,
        }
    }

    /// Returns the time: the operation's time, or the newest entry's if it is later.
    #[inline]
    pub const fn at(&self) -> Timestamp {
        self.now
    }

    /// Returns how far the store's clock is behind [`at`](Self::at), which is then the time of the log's newest entry. All waits include
    /// it. Zero for a caller-supplied time.
    ///
    /// A moment is normal, as processes and threads read the clock before they wait for the log. More than a second means that the
    /// clock was ahead and has been corrected.
    pub const fn clock_behind(&self) -> Duration {
        Duration::from_micros(self.now.micros_since(self.clock))
    }

    /// Returns the binding limit.
    #[inline]
    pub fn limit(&self) -> Limit {
        self.binding().limit
    }

    /// Returns the cost counted in the binding limit's window, capped at the limit's maximum.
    #[inline]
    pub fn used(&self) -> u64 {
        self.binding().used
    }

    /// Returns the units that remain of the binding limit.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.binding().remaining()
    }

    /// Returns how long until [`remaining`](Self::remaining) next grows. Zero if nothing is used.
    #[inline]
    pub fn refill_after(&self) -> Duration {
        self.binding().refill_after()
    }

    /// Returns how long until every window is empty. Zero if they are all empty now.
    #[inline]
    pub fn reset_after(&self) -> Duration {
        let used = self.limits.iter().filter(|(_, usage)| usage.used > 0);
        let longest = used.map(|(limit, _)| limit.window()).max();
        Duration::from_micros(
            longest.map_or(0, |window| window.micros_left(self.newest, self.clock)),
        )
    }

    /// Returns the values of every limit, in the policy's order.
    pub fn limits(&self) -> PerLimit<LimitStatus> {
        PerLimit::from_fn(self.limits.len(), |i| self.limit_status(i))
    }

    /// Returns the status with another usage of each limit, for example once charges are refunded.
    #[must_use]
    pub fn with_used(&self, mut used: impl FnMut(Limit) -> u64) -> Self {
        let limits = self.limits.map(|(limit, usage)| {
            let used = used(limit);
            (limit, Usage { used, ..usage })
        });
        Self {
            limits,
            ..self.clone()
        }
    }

    /// Returns the index of the binding limit in [`limits`](Self::limits).
    #[inline]
    pub fn binding_index(&self) -> usize {
        if self.limits.len() == 1 {
            0
        } else {
            self.binding_of_several()
        }
    }

    #[inline]
    pub(crate) fn binding(&self) -> LimitStatus {
        self.limit_status(self.binding_index())
    }

    #[inline(never)]
    fn binding_of_several(&self) -> usize {
        let order = |i: &usize| {
            let limit = self.limit_status(*i);
            if self.verdict.denied {
                u64::MAX - limit.retry_after
            } else {
                limit.remaining()
            }
        };
        // `min_by_key` returns the first of equals, which is the tie rule.
        (0..self.limits.len()).min_by_key(order).unwrap_or(0)
    }

    /// Returns the values of limit `i`.
    #[inline]
    fn limit_status(&self, i: usize) -> LimitStatus {
        let blocks = self.verdict.blocking >> i & 1 > 0;
        let (limit, usage) = self
            .limits
            .get(i)
            .copied()
            .unwrap_or((Limit::UNUSED, Usage::default()));
        let Usage {
            used,
            oldest,
            blocker,
        } = usage;
        let left = |is_due: bool, at| match is_due {
            true => limit.window().micros_left(at, self.clock),
            false => 0,
        };
        LimitStatus {
            limit,
            used: used.min(limit.max()),
            retry_after: left(blocks, blocker),
            refill_after: left(used > 0, oldest),
            // If anything counts, the newest entry does.
            reset_after: left(used > 0, self.newest),
        }
    }
}

/// Two statuses are equal if all the values they return are equal.
impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        (self.at(), self.clock, self.limits()) == (other.at(), other.clock, other.limits())
    }
}

impl Eq for Status {}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Status");
        out.field("at", &self.at())
            .field("binding_index", &self.binding_index())
            .field("limits", &self.limits());
        out.finish()
    }
}

/// Returns a duration in whole seconds, rounded up, for HTTP headers. 200 ms becomes 1 s, and 0 stays 0.
#[must_use]
pub const fn ceil_secs(duration: Duration) -> u64 {
    let more = if duration.subsec_nanos() > 0 { 1 } else { 0 };
    duration.as_secs().saturating_add(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy;
    use crate::store::{Log, Mode, Op, decide};

    #[test]
    fn seconds_are_rounded_up() {
        for (nanos, secs) in [
            (0, 0),
            (1, 1),
            (200_000_000, 1),
            (1_000_000_000, 1),
            (1_000_000_001, 2),
        ] {
            assert_eq!(ceil_secs(Duration::from_nanos(nanos)), secs, "{nanos} ns");
        }
        assert_eq!(ceil_secs(Duration::MAX), u64::MAX);
    }

    #[test]
    fn each_limit_resets_when_the_newest_entry_leaves_its_window() {
        let policy = policy!("3/1s, 5/10s, 4/9s+1s");
        let at = |millis: u64| Timestamp::from_micros_saturating(millis * 1_000);
        let mut log = Log::new();
        let mut status = |mode, millis| {
            let op = Op::new(mode, "", &policy).at(at(millis));
            decide(&op, log.apply(&op, at(millis))).into_status()
        };
        let nothing = status(Mode::Peek, 9);
        assert_eq!(nothing.used(), 0);
        assert_eq!(
            [nothing.refill_after(), nothing.reset_after()],
            [Duration::ZERO; 2]
        );
        status(Mode::Record, 1_000);
        status(Mode::Record, 4_500);
        let status = status(Mode::Peek, 5_000);
        let millis = Duration::from_millis;
        for (limit, reset_after) in status.limits().iter().zip([500, 9_500, 9_500]) {
            assert_eq!(limit.reset_after(), millis(reset_after));
        }
        assert_eq!(status.reset_after(), millis(9_500));
        assert_eq!(status.refill_after(), millis(500));
        assert_eq!(status.binding_index(), 0);
        assert_eq!([status.used(), status.remaining()], [1, 2]);
        let refunded = status.with_used(|limit| limit.max() - 3);
        assert_eq!(refunded.remaining(), 3);
        assert_eq!(refunded.limits()[0].reset_after, 0);
    }
}
