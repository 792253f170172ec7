//! The facts that a store returns for an operation or a settlement.

use crate::error::{Error, ErrorKind};
use crate::policy::Policy;
use crate::policy::time::Timestamp;
use crate::store::log_key::LogKey;
use crate::store::op::{EntryId, Op};
use crate::store::per_limit::PerLimit;
use crate::store::settlement::{Change, Settlement};

/// The result of an operation on a log. [`decide`](crate::store::decide) derives the decision from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether the operation fitted every limit. For a record: whether it would have fitted. For a repeated operation: the
    /// original verdict.
    pub admitted: bool,
    /// Whether the entry has a receipt: L15 of the contract of [`WindowStore`](crate::WindowStore). Unspecified without an entry.
    pub refundable: bool,
    /// Whether the operation appended its entry, found it in the log, or neither.
    pub outcome: Outcome,
    /// The log after the operation.
    pub log: LogFacts,
}

/// The result of a [`Settlement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettlementFacts {
    /// The entry that the settlement changed. `None` if the log did not hold it. Then nothing changed.
    pub changed: Option<Changed>,
    /// The log after the settlement.
    pub log: LogFacts,
}

/// The entry that a [`Settlement`] changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The entry's cost before. If the store has repeated the settlement after a lost reply, it may be the cost afterwards.
    pub cost_before: u64,
    /// The entry's id and time afterwards. A refunded entry had them.
    pub entry: Entry,
}

/// A log's state at one time, with one policy's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFacts {
    /// The operation's time: caller-supplied or the store's, but no earlier than the newest entry before the operation.
    pub now: Timestamp,
    /// The time from which waits count: the reading of the store's clock if the operation happened by it, which is earlier than
    /// `now` while the clock is behind the newest entry. `now` for a caller-supplied time.
    pub clock: Timestamp,
    /// The time of the newest entry, whether or not it still counts. `None` if the log is empty.
    pub newest: Option<Timestamp>,
    /// The usage of each limit, in the policy's order.
    pub usage: PerLimit<Usage>,
}

/// An operation's effect on its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was appended.
    Nothing,
    /// The operation would have appended, but counts nowhere: the store is down, and a wrapper's choice is to admit. No store returns it.
    Uncounted,
    /// The entry was appended.
    Appended(Entry),
    /// The log already held the operation's entry: the caller repeated its id, or the store retried a lost call.
    Repeated {
        /// The entry.
        entry: Entry,
        /// The entry's cost, whatever cost the repetition has.
        cost: u64,
    },
}

/// An entry's identity in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The store's id of the entry, unique among the entries that the log currently holds. It may be the caller's id.
    pub id: EntryId,
    /// The entry's timestamp.
    pub at: Timestamp,
}

/// The usage of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The total cost of the entries that count in the window.
    ///
    /// A store that has dropped older entries may report less, but never less than the limit's maximum.
    pub used: u64,
    /// The time of the entry whose expiry makes `remaining` grow.
    ///
    /// This is the first entry at which the running total of the counting entries, oldest first, exceeds
    /// `max(0, used - maximum)`. Unless usage exceeds the maximum, it is the oldest counting entry. Unspecified if `used`
    /// is 0.
    pub oldest: Timestamp,
    /// The time of the entry whose expiry makes the operation fit this limit.
    ///
    /// This is the first entry at which the running total of the counting entries, oldest first, reaches
    /// `used + cost - maximum`. Unspecified for a record, for a settlement, and if the operation fits this limit on the
    /// current log.
    pub blocker: Timestamp,
}

impl Facts {
    /// Checks that usage, verdict and outcome agree with each other and with `op`.
    ///
    /// # Errors
    /// [`ErrorKind::Inconsistent`] if they do not: the store has a bug, or another program writes to its data.
    pub fn verify(&self, op: &Op<'_>) -> Result<(), Error> {
        let Some(what) = self.contradiction(op) else {
            return Ok(());
        };
        let result = format!(
            "{what}; cost {}, admitted {}, refundable {}, {:?}",
            op.cost, self.admitted, self.refundable, self.outcome
        );
        Err(self.log.contradiction(op.log, op.policy, &result))
    }

    /// Returns what contradicts what.
    fn contradiction(&self, op: &Op<'_>) -> Option<&'static str> {
        let (log, admitted, appends) = (&self.log, self.admitted, op.appends(self.admitted));
        Some(match self.outcome {
            _ if log.usage.len() != op.policy.limits().len() => "expected one usage per limit",
            _ if log.newest.is_some_and(|newest| newest > log.now) => {
                "the newest entry is later than the operation"
            }
            _ if log.clock > log.now => "the store's clock is later than the operation",
            Outcome::Nothing if appends => "nothing was appended, although the verdict demands it",
            Outcome::Appended(_) | Outcome::Uncounted if !appends => {
                "an entry was appended, although the verdict forbids it"
            }
            Outcome::Appended(_) | Outcome::Repeated { .. } if self.refundable && !admitted => {
                "an entry that did not fit is refundable"
            }
            Outcome::Appended(entry) if entry.at != log.now => {
                "the appended entry is not at the operation's time"
            }
            Outcome::Appended(_) if log.newest != Some(log.now) => {
                "the appended entry is not the newest"
            }
            Outcome::Nothing | Outcome::Uncounted if log.fits(op.policy, op.cost) != admitted => {
                "the verdict contradicts the usage"
            }
            // Retention may drop entries above the maximum, so after a denied attempt usage is only known to reach it.
            Outcome::Appended(_) if log.fits(op.policy, u64::from(!admitted)) != admitted => {
                "the verdict contradicts the usage"
            }
            // The verdict on a repetition is the original one, the usage the current one, so they may disagree.
            _ => return None,
        })
    }
}

impl SettlementFacts {
    /// Returns `true` if the settlement took effect.
    #[must_use]
    pub const fn applied(&self) -> bool {
        self.changed.is_some()
    }

    /// Checks that the facts describe the limits of the settlement's policy, and that a renewed entry is the newest.
    ///
    /// # Errors
    /// [`ErrorKind::Inconsistent`] if they do not: the store has a bug.
    pub fn verify(&self, settlement: &Settlement<'_>) -> Result<(), Error> {
        let Self { changed, log } = self;
        let is_ordered = log.newest.is_none_or(|newest| newest <= log.now) && log.clock <= log.now;
        let is_newest = changed
            .is_none_or(|changed| (changed.entry.at, log.newest) == (log.now, Some(log.now)));
        if is_ordered
            && (is_newest || matches!(settlement.change, Change::Cost(_)))
            && log.usage.len() == settlement.policy.limits().len()
        {
            return Ok(());
        }
        Err(log.contradiction(settlement.log, settlement.policy, &format!("{changed:?}")))
    }
}

impl LogFacts {
    /// Returns `true` if `more` units fit every limit on top of its usage.
    #[inline(always)]
    fn fits(&self, policy: &Policy, more: u64) -> bool {
        let pairs = self.usage.iter().zip(policy.limits());
        pairs.fold(true, |fits, (usage, limit)| {
            fits & (usage.used.saturating_add(more) <= limit.max())
        })
    }

    fn contradiction(&self, log: LogKey<'_>, policy: &Policy, result: &str) -> Error {
        let text = format!(
            "the store returned facts that are inconsistent with the policy {policy}: {result}, {self:?}"
        );
        Error::new(ErrorKind::Inconsistent, text).with_log(log)
    }
}
