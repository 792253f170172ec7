//! What a store answers.

use crate::{EntryId, Error, ErrorKind, Op, PerLimit, Timestamp};

/// What a store found and did: everything that [`decide`](crate::decide) needs and a store alone can know.
///
/// All of it describes the log *after* the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The operation's time: the given or the store's, but no earlier than the newest entry before the operation.
    pub now: Timestamp,
    /// Whether it fitted every limit (for a record: it would have). For a repeated operation the original verdict.
    pub admitted: bool,
    /// What became of the entry.
    pub outcome: Outcome,
    /// The time of the newest entry, whether it still counts or not; `None` if the log is empty.
    pub newest: Option<Timestamp>,
    /// For each limit of the policy, in its order.
    pub usage: PerLimit<Usage>,
}

/// What became of an operation's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was appended.
    Nothing,
    /// The entry was appended.
    Appended(Entry),
    /// The log held the operation's entry already, by its id or because the store itself had to repeat it: this one.
    Repeated(Entry),
}

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The store's name of it, unique among the entries of the key at this time; the caller's id or not, as the store likes.
    pub id: EntryId,
    /// The time at which it counts.
    pub at: Timestamp,
}

/// How much of one limit is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The sum of the costs of the entries that count in the window. Where it is above the limit's maximum, a store
    /// that has dropped older entries may report less, but not less than the maximum.
    pub used: u64,
    /// The entry whose leaving frees the next unit: the first one such that it and all older ones that count hold more
    /// cost than `used` exceeds the maximum by. This is the oldest that counts unless usage is above the maximum.
    /// Anything if `used` is 0.
    pub oldest: Timestamp,
    /// The first entry whose leaving makes room for the operation: it and all older ones that count hold at least
    /// `used + cost - max`. Anything if the operation fits this limit on the log as it is now.
    pub blocker: Timestamp,
}

impl Facts {
    /// Checks that the verdict follows from the usage and that the outcome follows from the verdict.
    ///
    /// # Errors
    /// [`ErrorKind::Inconsistent`] if not: the store is broken, or something else writes to it.
    #[inline(always)]
    pub fn verify(&self, op: &Op<'_>) -> Result<(), Error> {
        let consistent = match self.outcome {
            // By the caller, or by the store itself after an answer was lost: the verdict is of then, the usage of now.
            Outcome::Repeated(_) => true,
            Outcome::Appended(entry) => {
                op.appends(self.admitted)
                    && entry.at == self.now
                    && self.newest == Some(self.now)
                    // What made a denied attempt exceed the maximum may have been dropped, so that it is reached only.
                    && self.fits(op, u64::from(!self.admitted)) == self.admitted
            }
            Outcome::Nothing => !op.appends(self.admitted) && self.admitted == self.fits(op, op.cost),
        };
        let ordered = self.newest.is_none_or(|newest| newest <= self.now);
        if consistent && ordered && self.usage.len() == op.policy.limits().len() {
            return Ok(());
        }
        Err((*self).inconsistent(op))
    }

    /// Whether `more` fits every limit on top of what is used.
    #[inline(always)]
    fn fits(&self, op: &Op<'_>, more: u64) -> bool {
        let pairs = self.usage.iter().zip(op.policy.limits().iter());
        pairs.fold(true, |fits, (usage, limit)| fits & (usage.used.saturating_add(more) <= limit.max()))
    }

    // By value: that a pointer to them may leave would keep the facts from staying in registers.
    #[cold]
    #[inline(never)]
    #[allow(clippy::large_types_passed_by_value)]
    fn inconsistent(self, op: &Op<'_>) -> Error {
        let text = format!("the store's facts contradict {} for cost {}: {self:?}", op.policy, op.cost);
        Error::new(ErrorKind::Inconsistent, text)
    }
}
