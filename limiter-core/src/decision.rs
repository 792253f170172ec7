//! Decisions, and the function that derives them from a store's facts.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use crate::facts::{Facts, LogFacts, Outcome, Usage};
use crate::limit::Limit;
use crate::op::{Mode, Op};
use crate::per_limit::PerLimit;
use crate::settlement::Receipt;
use crate::status::{LimitStatus, Status, binding_values, ceil_secs};
use crate::time::{Timestamp, Window};

/// The verdict on an operation, with the usage after it.
///
/// [`limit`](Self::limit), [`used`](Self::used), [`remaining`](Self::remaining) and
/// [`refill_after`](Self::refill_after) describe the *binding* limit. For a denial that is the limit with the longest wait,
/// otherwise the one with the least remaining. The first in the policy's order wins ties. [`limits`](Self::limits) returns
/// the values of every limit.
///
/// All durations start at [`at`](Self::at) and are whole microseconds. A decision holds the store's facts and computes its
/// values on demand. It allocates only under a policy of more than four limits.
#[derive(Clone)]
#[must_use = "a decision says whether to proceed"]
pub struct Decision {
    status: Status,
    outcome: Outcome,
    allowed: bool,
    pub(crate) denied: bool,
    /// Bit `i` is set if limit `i` denies the operation.
    blocking: u8,
    /// Whether the entry, if there is one, has a receipt.
    has_receipt: bool,
    /// How long the receipt is valid.
    receipt_window: Window,
}

impl Decision {
    /// Returns whether the operation fitted every limit. For a record, which is never denied: whether it would have fitted.
    #[inline]
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.allowed
    }

    /// Returns whether the operation was denied, so that [`into_result`](Self::into_result) is an error. Never for a record.
    #[inline]
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        self.denied
    }

    /// Returns the time of the decision: the operation's time, or that of the log's newest entry if it is later.
    #[inline]
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.status.at()
    }

    binding_values!();

    /// Returns how long to wait until a denied acquire or peek fits, if nothing else is recorded in the meantime.
    ///
    /// Waiting exactly that long succeeds; one microsecond less does not. `None` if the operation was not denied.
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        // A repeated denial may fit by now, but a denial never reports a wait of 0.
        self.denied.then(|| Duration::from_micros(self.binding().retry_after.max(1)))
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up, for the HTTP header `Retry-After`.
    ///
    /// At least 1 for a denial. `None` if the operation was not denied.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(ceil_secs)
    }

    /// Returns how long until every window is empty. Zero if they are all empty now.
    #[inline]
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.status.reset_after()
    }

    /// Returns the receipt of the operation's entry. For a repeated idempotency key, that of the original entry.
    ///
    /// `None` if the log holds no entry for the operation, or if the entry exceeded a limit of the operation's policy or of the
    /// limiter's default policy when it was appended: a denied attempt, or a record above a maximum.
    ///
    /// With a [resolution](Limit::resolution), only [permits](crate::Request::permit) and calls with an
    /// [idempotency key](crate::Request::idempotency_key) have receipts, which expire after ten minutes.
    #[inline]
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        if self.has_receipt { self.entry() } else { None }
    }

    /// Names the operation's entry, even if it has no receipt.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Receipt> {
        match self.outcome {
            Outcome::Appended(entry) | Outcome::Repeated(entry) => {
                Some(Receipt::new(entry.id, entry.at, self.receipt_window))
            }
            Outcome::Nothing => None,
        }
    }

    /// Returns whether the operation has an entry in the log: it appended one, or repeats the call that did.
    #[inline]
    #[must_use]
    pub const fn appended(&self) -> bool {
        !matches!(self.outcome, Outcome::Nothing)
    }

    /// Returns the time of the operation's entry; for a repeated idempotency key, that of the original one.
    #[must_use]
    pub fn appended_at(&self) -> Option<Timestamp> {
        self.entry().map(|entry| entry.at())
    }

    /// Returns whether this repeats the denial of an earlier acquire with the same id. A retry cannot succeed.
    pub(crate) fn is_final_denial(&self) -> bool {
        self.denied && self.is_repeated()
    }

    /// Returns whether the log held the operation's entry already.
    pub(crate) const fn is_repeated(&self) -> bool {
        matches!(self.outcome, Outcome::Repeated(_))
    }

    /// Returns the values of every limit, in the policy's order.
    #[must_use]
    pub fn limits(&self) -> PerLimit<LimitStatus> {
        self.status.limit_statuses(self.blocking)
    }

    /// Returns the index of the binding limit in [`limits`](Self::limits).
    #[inline]
    #[must_use]
    pub fn binding_index(&self) -> usize {
        if self.status.limit_count() == 1 { 0 } else { self.binding_of_several() }
    }

    /// Returns the usage without the verdict.
    ///
    /// Its binding limit is always the one with the least remaining, even after a denial.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    #[inline]
    pub(crate) fn into_status(self) -> Status {
        self.status
    }

    #[inline]
    fn binding(&self) -> LimitStatus {
        self.limit_status(self.binding_index())
    }

    #[inline]
    fn limit_status(&self, i: usize) -> LimitStatus {
        self.status.limit_status(i, self.blocking >> i & 1 > 0)
    }

    #[inline(never)]
    fn binding_of_several(&self) -> usize {
        if !self.denied {
            return self.status.least_remaining();
        }
        // `min_by_key` returns the first of equals, which is the tie rule.
        (0..self.status.limit_count()).min_by_key(|i| Reverse(self.limit_status(*i).retry_after)).unwrap_or(0)
    }
}

/// Two decisions are equal if all the values they return are equal.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let verdict = |decision: &Self| {
            (decision.allowed, decision.denied, decision.at(), decision.appended(), decision.receipt())
        };
        verdict(self) == verdict(other) && self.limits() == other.limits()
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
            .field("appended", &self.appended())
            .field("receipt", &self.receipt())
            .field("binding_index", &self.binding_index())
            .field("limits", &self.limits())
            .finish()
    }
}

/// Derives the decision on an operation from a store's facts. All backends share this logic.
///
/// Pure. The result is unspecified if `facts` do not belong to `op`; [`Facts::verify`] checks that.
#[inline]
pub fn decide(op: &Op<'_>, facts: Facts) -> Decision {
    let Facts { admitted, refundable, outcome, log } = facts;
    let (denied, blocking) = denial(op, admitted, op.policy.limits(), &log.usage);
    let has_receipt = refundable && (op.is_named() || !op.has_resolution());
    let (status, receipt_window) = (Status::new(op.policy, log), op.receipt_window());
    Decision { status, outcome, allowed: admitted, denied, blocking, has_receipt, receipt_window }
}

/// Derives a decision like [`decide`], for a number of limits known at compile time.
///
/// With a constant `N`, the decision copies only `N` limits. The operation must be under the limiter's policy. If a limit has a
/// resolution, it must not be [named](Op::is_named).
#[inline(always)]
pub fn decide_sized<const N: usize>(op: &Op<'_>, limits: &[Limit; N], facts: SizedFacts<N>) -> Decision {
    let SizedFacts { admitted, outcome, now, newest, usage } = facts;
    let (denied, blocking) = denial(op, admitted, limits, &usage);
    let status = Status::sized(limits, usage, now, newest);
    let (has_receipt, receipt_window) = (admitted && !op.has_resolution(), op.retention().window);
    Decision { status, outcome, allowed: admitted, denied, blocking, has_receipt, receipt_window }
}

/// [`Facts`] on an operation under the limiter's policy, for which [`Facts::refundable`] equals [`Facts::admitted`].
#[derive(Clone, Copy, Debug)]
pub struct SizedFacts<const N: usize> {
    /// As [`Facts::admitted`].
    pub admitted: bool,
    /// As [`Facts::outcome`].
    pub outcome: Outcome,
    /// As [`LogFacts::now`].
    pub now: Timestamp,
    /// As [`LogFacts::newest`].
    pub newest: Option<Timestamp>,
    /// As [`LogFacts::usage`].
    pub usage: [Usage; N],
}

impl<const N: usize> From<SizedFacts<N>> for Facts {
    #[inline(always)]
    fn from(facts: SizedFacts<N>) -> Self {
        let SizedFacts { admitted, outcome, now, newest, usage } = facts;
        Self { admitted, refundable: admitted, outcome, log: LogFacts { now, newest, usage: usage.into() } }
    }
}

/// Returns whether the operation is denied, and the limits that deny it as a bit set.
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
    use crate::policy;

    #[test]
    fn a_decision_stays_small() {
        // Moving a decision is a measurable part of a decision in memory.
        assert!(size_of::<Decision>() <= 240, "{}", size_of::<Decision>());
    }

    #[test]
    fn decisions_are_equal_if_everything_they_return_is() {
        let policy = policy!("2/1s, 9/1m");
        let op = Op::peek("", &policy).with_cost(2);
        let at = Timestamp::from_micros_saturating;
        let used = |used, oldest, blocker| Usage { used, oldest: at(oldest), blocker: at(blocker) };
        let decided = |second: Usage| {
            let usage = [used(1, 200, 200), second].into();
            let log = LogFacts { now: at(500), newest: Some(at(400)), usage };
            let facts = Facts { admitted: false, refundable: false, outcome: Outcome::Nothing, log };
            facts.verify(&op).unwrap();
            let LogFacts { now, newest, .. } = facts.log;
            let usage = [used(1, 200, 200), second];
            let sized = SizedFacts { admitted: false, outcome: Outcome::Nothing, now, newest, usage };
            assert_eq!(Facts::from(sized), facts);
            let sized = decide_sized::<2>(&op, policy.limits_array().unwrap(), sized);
            let decision = decide(&op, facts);
            assert_eq!((&decision, format!("{decision:?}")), (&sized, format!("{sized:?}")));
            decision
        };
        let decision = decided(used(3, 100, 100));
        assert_eq!((decision.binding_index(), decision.retry_after()), (0, Some(Duration::from_micros(999_700))));
        assert_eq!((decision.retry_after_secs(), decision.status().binding_index()), (Some(1), 0));
        // `blocker` is unspecified if nothing blocks, `oldest` if nothing counts.
        assert_eq!(decision, decided(used(3, 100, 300)));
        assert_eq!(decided(used(0, 100, 300)), decided(used(0, 200, 400)));
        assert_ne!(decision, decided(used(2, 100, 100)));
        assert_ne!(decision, decided(used(3, 101, 100)));
        assert_ne!(decided(used(8, 100, 100)), decided(used(8, 100, 300)));
        assert_eq!(decided(used(8, 100, 100)).binding_index(), 1);
    }
}
