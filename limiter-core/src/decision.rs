//! Decisions, and the function that derives them from a store's facts.

use std::fmt;
use std::time::Duration;

use crate::policy::limit::Limit;
use crate::policy::time::{Timestamp, Window};
use crate::status::{EntryKind, LimitStatus, Status, Verdict, ceil_secs};
use crate::store::facts::{Entry, Facts, LogFacts, Outcome, Usage};
use crate::store::op::{EntryId, Mode, Op};
use crate::store::per_limit::PerLimit;
use crate::store::settlement::Receipt;

/// The verdict on an operation, with the usage after it. The binding limit of a denial is the one with the longest wait.
///
/// All durations start at [`at`](Status::at) and are whole microseconds. A decision holds the store's facts and computes its
/// values on demand. It allocates only for a policy of more than four limits.
#[derive(Clone)]
#[must_use = "a decision may be a denial"]
pub struct Decision {
    status: Status,
    /// Meaningless unless there is one, by [`Verdict::entry`]. The same holds for its cost.
    entry: Entry,
    cost: u64,
    /// How long the id of the entry is valid, and its receipt if it has one, in microseconds. 0 if neither ever is.
    valid_micros: u64,
}

impl Decision {
    /// Returns `true` unless the operation was [denied](Self::is_denied). Always for a record.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        !self.is_denied()
    }

    /// Returns `true` if the operation was denied, so that [`into_result`](Self::into_result) is an error. Never for a record.
    #[inline]
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        self.status.verdict.denied
    }

    /// Returns `true` if the operation fitted every limit. For an acquire or a peek, this is [`is_allowed`](Self::is_allowed). A
    /// record counts even if it does not fit.
    #[inline]
    #[must_use]
    pub const fn fits(&self) -> bool {
        self.status.verdict.fits
    }

    /// Returns how long to wait until a denied acquire or peek fits, if nothing else is recorded in the meantime.
    ///
    /// Waiting exactly that long succeeds; one microsecond less does not. `None` if the operation was not denied.
    ///
    /// A repetition of a denied acquire is denied until its idempotency key is free again, even if it would fit by now. A new key need
    /// not wait for that.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # use limiter_testkit::ReferenceStore as MemoryStore;
    /// let search = Limiter::new("search", policy!("1/10s"), MemoryStore::new());
    /// assert_eq!(search.acquire("customer 7").now()?.retry_after(), None);
    /// let wait = search.acquire("customer 7").now()?.retry_after().unwrap();
    /// assert!(wait.as_secs() < 10);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if !self.is_denied() {
            return None;
        }
        // A denial never reports a wait of 0.
        let wait = self.status.binding().retry_after.max(1);
        let window = Window::from_micros(self.valid_micros).ok();
        let id_ends = window.filter(|_| self.is_repeated());
        let id_ends = id_ends.map(|window| window.micros_left(self.entry.at, self.status.clock));
        Some(Duration::from_micros(wait.max(id_ends.unwrap_or(0))))
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up, for the HTTP header `Retry-After`.
    ///
    /// At least 1 for a denial. `None` if the operation was not denied.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(ceil_secs)
    }

    /// Returns the receipt of the operation's entry. For a repeated idempotency key, the original entry's.
    ///
    /// `None` if the log holds no entry for the operation, as while a store that admits during outages is down, or if the entry exceeded a limit of the operation's policy or of the
    /// limiter's default policy when it was appended: a denied attempt, or a record above a maximum.
    ///
    /// A receipt is valid while an exact limit of either policy counts the entry. If all limits have a
    /// [resolution](Limit::resolution), there are no receipts.
    #[inline]
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        if !self.status.verdict.refundable {
            return None;
        }
        let entry = self.entry()?;
        let window = Window::from_micros(self.valid_micros).ok()?;
        Some(Receipt::new(entry.id, entry.at, window))
    }

    /// Returns the cost of the operation's entry. For a repeated idempotency key, that is the cost of the original entry, or of its last
    /// settlement, whatever cost the repetition has. `None` if the log holds no entry for the operation.
    #[must_use]
    pub fn cost(&self) -> Option<u64> {
        self.appended().then_some(self.cost)
    }

    /// Returns the operation's entry, even if it has no receipt.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<Entry> {
        if self.appended() {
            Some(self.entry)
        } else {
            None
        }
    }

    /// Returns `true` if the operation has an entry in the log: it appended one, or repeats the call that did.
    #[inline]
    #[must_use]
    pub const fn appended(&self) -> bool {
        matches!(
            self.status.verdict.entry,
            EntryKind::Appended | EntryKind::Repeated
        )
    }

    /// Returns `true` if the operation was admitted without being counted, because the store is down.
    pub(crate) const fn is_uncounted(&self) -> bool {
        matches!(self.status.verdict.entry, EntryKind::Uncounted)
    }

    /// Returns `true` if the log held the operation's entry already.
    pub(crate) const fn is_repeated(&self) -> bool {
        matches!(self.status.verdict.entry, EntryKind::Repeated)
    }

    /// Returns the usage of every limit.
    #[inline]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Returns the decision with its waits counted from another clock, if there is one.
    pub(crate) fn waiting_from(mut self, clock: Option<Timestamp>) -> Self {
        self.status.clock = clock.unwrap_or(self.status.clock);
        self
    }

    /// Returns the usage without the verdict: no limit denies, and the binding limit is the one with the least remaining.
    #[inline]
    pub(crate) fn into_status(mut self) -> Status {
        self.status.verdict = Verdict::default();
        self.status
    }
}

/// Defines a decision's methods that return a value of its status.
macro_rules! of_status {
    ($($name:ident: $type:ty,)*) => {
        impl Decision {$(
            #[doc = concat!("As [`Status::", stringify!($name), "`].")]
            #[inline]
            #[must_use]
            pub fn $name(&self) -> $type {
                self.status.$name()
            }
        )*}
    };
}

of_status! {
    at: Timestamp,
    clock_behind: Duration,
    limit: Limit,
    used: u64,
    remaining: u64,
    refill_after: Duration,
    reset_after: Duration,
    limits: PerLimit<LimitStatus>,
    binding_index: usize,
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("fits", &self.fits())
            .field("retry_after", &self.retry_after())
            .field("appended", &self.appended())
            .field("receipt", &self.receipt())
            .field("cost", &self.cost())
            .field("status", &self.status)
            .finish()
    }
}

/// Derives the decision on an operation from a store's facts. All backends share this logic.
///
/// Pure. The result is unspecified if `facts` do not belong to `op`; [`Facts::verify`] checks that.
#[inline]
pub fn decide(op: &Op<'_>, facts: Facts) -> Decision {
    let Facts {
        admitted,
        refundable,
        outcome,
        log,
    } = facts;
    let (kind, entry, cost) = parts(op, outcome);
    let mut verdict = verdict(op, [admitted, refundable], op.policy.limits(), &log.usage);
    verdict.entry = kind;
    Decision {
        status: Status::new(op.policy, log, verdict),
        entry,
        cost,
        valid_micros: valid_micros(op),
    }
}

/// Derives a decision like [`decide`], for a number of limits known at compile time.
///
/// With a constant `N`, the decision copies only `N` limits. The operation must have the limiter's policy.
#[inline(always)]
pub fn decide_sized<const N: usize>(
    op: &Op<'_>,
    limits: &[Limit; N],
    facts: SizedFacts<N>,
) -> Decision {
    let SizedFacts {
        admitted,
        refundable,
        outcome,
        now,
        clock,
        newest,
        usage,
    } = facts;
    let (kind, entry, cost) = parts(op, outcome);
    let mut verdict = verdict(op, [admitted, refundable], limits, &usage);
    verdict.entry = kind;
    Decision {
        status: Status::sized(limits, usage, [now, clock], newest, verdict),
        entry,
        cost,
        valid_micros: valid_micros(op),
    }
}

/// [`Facts`] with the usage of up to `N` limits in an array.
#[derive(Clone, Copy, Debug)]
pub struct SizedFacts<const N: usize> {
    /// As [`Facts::admitted`].
    pub admitted: bool,
    /// As [`Facts::refundable`].
    pub refundable: bool,
    /// As [`Facts::outcome`].
    pub outcome: Outcome,
    /// As [`LogFacts::now`].
    pub now: Timestamp,
    /// As [`LogFacts::clock`].
    pub clock: Timestamp,
    /// As [`LogFacts::newest`].
    pub newest: Option<Timestamp>,
    /// As [`LogFacts::usage`].
    pub usage: [Usage; N],
}

impl<const N: usize> SizedFacts<N> {
    /// Returns the facts of the first `limits` limits, at least one.
    #[inline(always)]
    #[must_use]
    pub fn of_first(self, limits: usize) -> Facts {
        Facts {
            admitted: self.admitted,
            refundable: self.refundable,
            outcome: self.outcome,
            log: LogFacts {
                now: self.now,
                clock: self.clock,
                newest: self.newest,
                usage: PerLimit::from_fn(limits, |i| self.usage[i]),
            },
        }
    }
}

/// Returns the kind of an outcome, the entry and its cost.
#[inline(always)]
fn parts(op: &Op<'_>, outcome: Outcome) -> (EntryKind, Entry, u64) {
    const NONE: Entry = Entry {
        id: EntryId::from_u128(0),
        at: Timestamp::EPOCH,
    };
    match outcome {
        Outcome::Nothing => (EntryKind::Nothing, NONE, 0),
        Outcome::Uncounted => (EntryKind::Uncounted, NONE, 0),
        Outcome::Appended(entry) => (EntryKind::Appended, entry, op.cost),
        Outcome::Repeated { entry, cost } => (EntryKind::Repeated, entry, cost),
    }
}

#[inline(always)]
fn valid_micros(op: &Op<'_>) -> u64 {
    op.receipt_window().map_or(0, Window::as_micros)
}

/// Returns the verdict: whether the operation is denied, and by which limits.
#[inline(always)]
fn verdict(
    op: &Op<'_>,
    [admitted, refundable]: [bool; 2],
    limits: &[Limit],
    usage: &[Usage],
) -> Verdict {
    if admitted || op.mode == Mode::Record {
        return Verdict {
            fits: admitted,
            refundable,
            ..Verdict::default()
        };
    }
    let blocks = |(i, (limit, usage)): (usize, (&Limit, &Usage))| {
        u8::from(usage.used.saturating_add(op.cost) > limit.max()) << i
    };
    let blocking = limits.iter().zip(usage).enumerate().map(blocks).sum();
    Verdict {
        denied: true,
        blocking,
        ..Verdict::default()
    }
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
    fn a_decision_shows_what_it_returns() {
        let policy = policy!("2/1s, 9/1m");
        let op = Op::peek("", &policy).with_cost(2);
        let at = Timestamp::from_micros_saturating;
        let used = |used, oldest, blocker| Usage {
            used,
            oldest: at(oldest),
            blocker: at(blocker),
        };
        let decided = |second: Usage| {
            let sized = SizedFacts {
                admitted: false,
                refundable: false,
                outcome: Outcome::Nothing,
                now: at(500),
                clock: at(500),
                newest: Some(at(400)),
                usage: [used(1, 200, 200), second],
            };
            let facts = sized.of_first(2);
            facts.verify(&op).unwrap();
            let decision = decide(&op, facts);
            let sized = decide_sized::<2>(&op, policy.limits_array().unwrap(), sized);
            assert_eq!(format!("{decision:?}"), format!("{sized:?}"));
            decision
        };
        let shown = |second| format!("{:?}", decided(second));
        let decision = decided(used(3, 100, 100));
        assert_eq!(decision.binding_index(), 0);
        assert_eq!(decision.retry_after(), Some(Duration::from_micros(999_700)));
        assert_eq!(decision.retry_after_secs(), Some(1));
        assert_eq!(decision.clone().into_status().binding_index(), 0);
        // `blocker` is unspecified if nothing blocks, `oldest` if nothing counts.
        assert_eq!(format!("{decision:?}"), shown(used(3, 100, 300)));
        assert_eq!(shown(used(0, 100, 300)), shown(used(0, 200, 400)));
        assert_ne!(format!("{decision:?}"), shown(used(2, 100, 100)));
        assert_ne!(format!("{decision:?}"), shown(used(3, 101, 100)));
        assert_ne!(shown(used(8, 100, 100)), shown(used(8, 100, 300)));
        // A denial is bound by the longest wait, a status by the least remaining.
        let denial = decided(used(8, 100, 100));
        assert_eq!(denial.binding_index(), 1);
        let status = denial.into_status();
        assert_eq!(status.binding_index(), 0);
        let denies = |limit: &LimitStatus| limit.retry_after().is_some();
        assert!(!status.limits().iter().any(denies));
    }
}
