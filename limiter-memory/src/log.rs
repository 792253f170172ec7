//! One key's log.

use limiter_core::{Entry, EntryId, Facts, MAX_COST, Op, Outcome, Receipt, Timestamp, sized_by_limits};

use crate::deep::Deep;
use crate::few::Few;
use crate::ids::{Ids, Named};
use crate::keep::Keep;
use crate::survey::{Entries, appended, facts, fits, spans};

/// A key's entries: three words in the map, and more elsewhere once there are more than a few.
pub(crate) enum Log {
    Few(Few),
    Many(Box<Many>),
}

/// A log that does not fit in the map.
#[derive(Debug)]
pub(crate) struct Many {
    entries: Deep,
    keep: Keep,
    ids: Option<Box<Ids>>,
}

impl Log {
    /// An empty log whose first entry will have this number, of 48 bits.
    pub(crate) fn new(number: u64) -> Self {
        Self::Few(Few::new(number))
    }

    #[inline]
    pub(crate) fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        sized_by_limits!(op.policy, self.apply_sized(op, now))
    }

    #[inline]
    fn apply_sized<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        match self {
            Self::Few(few) => match few.apply::<N>(op, now) {
                Some(facts) => facts,
                None => self.outgrow().apply::<N>(op, now),
            },
            Self::Many(many) => many.apply::<N>(op, now),
        }
    }

    /// Moves the entries out of the map.
    #[cold]
    fn outgrow(&mut self) -> &mut Many {
        if let Self::Few(few) = self {
            let entries = Deep::new(few.number(), (0..few.len()).map(|i| few.at(i)));
            *self = Self::Many(Box::new(Many { entries, keep: few.keep(), ids: None }));
        }
        match self {
            Self::Many(many) => many,
            Self::Few(_) => unreachable!("the log has just been moved out"),
        }
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Few(few) => few.newest(),
            Self::Many(many) => many.entries.newest(),
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        match self {
            Self::Few(few) => few.keep(),
            Self::Many(many) => many.keep,
        }
    }

    /// How many entries the log holds.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.entries.len(),
        }
    }

    /// Sets the cost of the entry that the receipt names, or removes it; `false` if there is none.
    pub(crate) fn settle(&mut self, receipt: &Receipt, cost: u64, now: Timestamp) -> bool {
        let now = self.newest().map_or(now, |newest| newest.max(now));
        if receipt.has_left(now) {
            return false;
        }
        let number = receipt.entry().as_u128();
        let Ok(number) = u64::try_from(number) else { return false };
        if let Self::Few(few) = self {
            let is_there = number.checked_sub(few.number()).is_some_and(|i| i < few.len() as u64);
            if !is_there {
                return false;
            }
        }
        self.outgrow().settle(number, receipt.at(), cost)
    }
}

impl Many {
    #[inline]
    fn apply<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let newest = self.entries.newest();
        let now = newest.map_or(now, |newest| newest.max(now));
        let spans = spans::<N>(&mut self.entries, op, now);
        if let Some((verdict, entry)) = op.id.and_then(|id| self.named(id, op, now)) {
            return facts(&self.entries, &spans, op, now, newest, (verdict, Outcome::Repeated(entry)));
        }
        let admitted = fits(&spans, op);
        if !op.appends(admitted) {
            return facts(&self.entries, &spans, op, now, newest, (admitted, Outcome::Nothing));
        }
        let (expired, spans) = appended(spans, op);
        self.entries.drop_front(expired);
        let number = self.entries.push(now, op.cost);
        let outcome = Outcome::Appended(Entry { id: EntryId::from_u128(u128::from(number)), at: now });
        let facts = facts(&self.entries, &spans, op, now, Some(now), (admitted, outcome));
        self.entries.drop_beyond(op.policy.largest_max());
        self.keep = Keep::for_append(op);
        if self.ids.is_some() || op.id.is_some() {
            self.name(op.id, Named { number, admitted });
        }
        facts
    }

    /// Names the entry just appended, and forgets the names of those that it made the log drop.
    #[cold]
    fn name(&mut self, id: Option<EntryId>, named: Named) {
        let first = self.entries.first_number();
        let ids = self.ids.get_or_insert_default();
        ids.drop_before(first);
        if let Some(id) = id {
            ids.insert(id, named);
        }
    }

    /// The verdict on, and the name of, the entry with this id, if it still counts.
    #[cold]
    fn named(&self, id: EntryId, op: &Op<'_>, now: Timestamp) -> Option<(bool, Entry)> {
        let Named { number, admitted } = self.ids.as_ref()?.get(id)?;
        let at = self.entries.at(self.entries.find(number)?);
        let entry = Entry { id: EntryId::from_u128(u128::from(number)), at };
        op.policy.longest_window().counts(at, now).then_some((admitted, entry))
    }

    fn settle(&mut self, number: u64, at: Timestamp, cost: u64) -> bool {
        let Some(i) = self.entries.find(number).filter(|&i| self.entries.at(i) == at) else { return false };
        self.entries.settle(i, cost);
        self.entries.drop_beyond(MAX_COST);
        if let Some(ids) = &mut self.ids {
            if cost == 0 {
                ids.remove(number);
            }
            ids.drop_before(self.entries.first_number());
        }
        true
    }
}
