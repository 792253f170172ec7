//! One key's log.

use limiter_core::{Facts, Op, Outcome, Receipt, Timestamp, sized_by_limits};

use crate::apply::{apply, outgrows};
use crate::common::apply_common;
use crate::entries::Entries;
use crate::few::Few;
use crate::keep::Keep;
use crate::many::Many;

/// A key's entries: three words in the map, and more elsewhere once there are more than a few.
pub(crate) enum Log {
    Few(Few),
    Many(Box<Many>),
}

impl Log {
    /// An empty log whose first entry will have this number, of 48 bits.
    pub(crate) fn new(number: u64) -> Self {
        Self::Few(Few::new(number))
    }

    /// As [`apply_common`].
    #[inline(always)]
    pub(crate) fn apply_common<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
        match self {
            Self::Few(few) => {
                let facts = apply_common::<N>(few, op, now)?;
                if matches!(facts.outcome, Outcome::Appended(_)) {
                    few.keep = Keep::for_append(op);
                }
                Some(facts)
            }
            Self::Many(many) => many.apply_common::<N>(op, now),
        }
    }

    #[inline(never)]
    pub(crate) fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        sized_by_limits!(op.policy, self.apply_sized(op, now))
    }

    #[inline]
    fn apply_sized<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        match self {
            Self::Few(few) => {
                if !outgrows::<N>(few, op, now) {
                    let facts = apply::<N>(few, op, now);
                    if matches!(facts.outcome, Outcome::Appended(_)) {
                        few.keep = Keep::for_append(op);
                    }
                    return facts;
                }
            }
            Self::Many(many) => return many.apply::<N>(op, now),
        }
        self.outgrow().apply::<N>(op, now)
    }

    /// Moves the entries out of the map.
    #[cold]
    fn outgrow(&mut self) -> &mut Many {
        if let Self::Few(few) = self {
            *self = Self::Many(Box::new(Many::new(few)));
        }
        match self {
            Self::Many(many) => many,
            Self::Few(_) => unreachable!("the log has just been moved out"),
        }
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Few(few) => few.newest(),
            Self::Many(many) => many.newest(),
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        match self {
            Self::Few(few) => few.keep,
            Self::Many(many) => many.keep,
        }
    }

    /// How many entries the log holds.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    /// Sets the cost of the entry that the receipt names, or removes it; `false` if there is none.
    pub(crate) fn settle(&mut self, receipt: &Receipt, cost: u64, now: Timestamp) -> bool {
        let now = self.newest().map_or(now, |newest| newest.max(now));
        if receipt.has_left(now) {
            return false;
        }
        let Ok(number) = u64::try_from(receipt.entry().as_u128()) else { return false };
        if let Self::Few(few) = self {
            // A receipt of no entry here must not cost memory.
            if number.checked_sub(few.first_number()).is_none_or(|i| i >= few.len() as u64) {
                return false;
            }
        }
        self.outgrow().settle(number, receipt.at(), cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_three_words() {
        assert_eq!(size_of::<Log>(), 24);
    }
}
