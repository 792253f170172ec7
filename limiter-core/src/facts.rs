//! What a store answers.

use crate::error::{Error, ErrorKind};
use crate::log_key::LogKey;
use crate::op::{EntryId, Op};
use crate::per_limit::PerLimit;
use crate::policy::Policy;
use crate::settlement::Settlement;
use crate::time::Timestamp;

/// What a store found and did: everything that [`decide`](crate::store::decide) needs and only a store can know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether the operation fitted every limit (for a record: whether it would have). For a repeated operation, the
    /// original verdict.
    pub admitted: bool,
    /// What happened to the entry.
    pub outcome: Outcome,
    /// The log after the operation.
    pub log: LogFacts,
}

/// What a store answers to a [`Settlement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettlementFacts {
    /// Whether the log held the entry. If not, nothing changed.
    pub applied: bool,
    /// The log after the settlement.
    pub log: LogFacts,
}

/// A log at one time, read by the limits of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFacts {
    /// The operation's time: the given or the store's, but no earlier than the newest entry before the operation.
    pub now: Timestamp,
    /// The time of the newest entry, whether or not it still counts; `None` if the log is empty.
    pub newest: Option<Timestamp>,
    /// One item for each limit of the policy, in its order.
    pub usage: PerLimit<Usage>,
}

/// What happened to an operation's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was appended.
    Nothing,
    /// The entry was appended.
    Appended(Entry),
    /// The log already held the operation's entry, found by its id or because the store itself repeated a lost call.
    Repeated(Entry),
}

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The store's id of the entry, unique among the entries of the log at this time. It may be the caller's id.
    pub id: EntryId,
    /// The time at which it counts.
    pub at: Timestamp,
}

/// How much of one limit is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The sum of the costs of the entries that count in the window. If it exceeds the limit's maximum, a store that has
    /// dropped older entries may report less, but never less than the maximum.
    pub used: u64,
    /// The time of the entry whose expiry frees the next unit: the first one for which it and all older counting entries
    /// hold more than `max(0, used - maximum)`. Unless usage exceeds the maximum, that is the oldest entry that counts.
    /// Unspecified if `used` is 0.
    pub oldest: Timestamp,
    /// The time of the entry whose expiry makes the operation fit this limit: the first one for which it and all older
    /// counting entries hold at least `used + cost - maximum`. Unspecified if the operation fits this limit on the log as it
    /// is now, for a record, and in the answer to a settlement.
    pub blocker: Timestamp,
}

impl Facts {
    /// Checks that the verdict follows from the usage, and the outcome from the verdict.
    ///
    /// # Errors
    /// [`ErrorKind::Inconsistent`] if not: the store is broken, or something else writes to it.
    #[inline(always)]
    pub fn verify(&self, op: &Op<'_>) -> Result<(), Error> {
        let consistent = match self.outcome {
            // The verdict is of then, the usage of now.
            Outcome::Repeated(_) => true,
            Outcome::Appended(entry) => {
                op.appends(self.admitted)
                    && entry.at == self.log.now
                    && self.log.newest == Some(self.log.now)
                    // The entries that a denied attempt exceeded the maximum with may be dropped, so it is only reached.
                    && self.log.fits(op.policy, u64::from(!self.admitted)) == self.admitted
            }
            Outcome::Nothing => !op.appends(self.admitted) && self.admitted == self.log.fits(op.policy, op.cost),
        };
        if consistent && self.log.is_consistent(op.policy) { Ok(()) } else { Err(self.inconsistent(op)) }
    }

    #[cold]
    #[inline(never)]
    fn inconsistent(&self, op: &Op<'_>) -> Error {
        let Self { admitted, outcome, log } = self;
        log.contradict(op.log, op.policy, &format!("cost {}, admitted {admitted}, {outcome:?}", op.cost))
    }
}

impl SettlementFacts {
    /// Checks that the answer is about the settlement's policy.
    ///
    /// # Errors
    /// [`ErrorKind::Inconsistent`] if not: the store is broken.
    pub fn verify(&self, settlement: &Settlement<'_>) -> Result<(), Error> {
        if self.log.is_consistent(settlement.policy) {
            return Ok(());
        }
        Err(self.log.contradict(settlement.log, settlement.policy, &format!("applied {}", self.applied)))
    }
}

impl LogFacts {
    #[inline(always)]
    fn is_consistent(&self, policy: &Policy) -> bool {
        self.newest.is_none_or(|newest| newest <= self.now) && self.usage.len() == policy.limits().len()
    }

    /// Whether `more` fits every limit on top of what is used.
    #[inline(always)]
    fn fits(&self, policy: &Policy, more: u64) -> bool {
        let pairs = self.usage.iter().zip(policy.limits());
        pairs.fold(true, |fits, (usage, limit)| fits & (usage.used.saturating_add(more) <= limit.max()))
    }

    fn contradict(&self, log: LogKey<'_>, policy: &Policy, more: &str) -> Error {
        let text = format!("the store's facts contradict {policy}: {more}, {self:?}");
        Error::new(ErrorKind::Inconsistent, text).with_log(log)
    }
}
