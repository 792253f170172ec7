//! A log of any number of entries.

use limiter_core::{Entry, EntryId, Facts, MAX_COST, MAX_LIMITS, Op, Outcome, Timestamp};

use crate::few::Few;
use crate::ids::{Ids, Named};
use crate::keep::Keep;
use crate::survey::{Entries, survey};
use crate::units::Units;
use crate::weighted::Weighted;

/// Entries in the smallest form that has room for them, and where each limit's window began the last time.
#[derive(Debug)]
pub(crate) struct Many {
    form: Form,
    pub(crate) keep: Keep,
    /// How many entries have been dropped from the front, modulo 2^32.
    dropped: u32,
    /// Indices, plus what had been dropped when they were found.
    hints: [u32; MAX_LIMITS],
    ids: Option<Box<Ids>>,
}

#[derive(Debug)]
enum Form {
    Narrow(Units<u32>),
    Wide(Units<u64>),
    /// Also of a log from which an entry was removed: the numbers have a gap.
    Weighted(Weighted),
}

macro_rules! each_form {
    ($form:expr, $entries:ident => $body:expr) => {
        match $form {
            Form::Narrow($entries) => $body,
            Form::Wide($entries) => $body,
            Form::Weighted($entries) => $body,
        }
    };
}

impl Many {
    pub(crate) fn new(few: &Few) -> Self {
        let mut units = Units::new(few.first_number(), 2 * Few::CAPACITY);
        for i in 0..few.len() {
            units.push(few.at(i));
        }
        Self { form: Form::Narrow(units), keep: few.keep(), dropped: 0, hints: [0; MAX_LIMITS], ids: None }
    }

    pub(crate) fn len(&self) -> usize {
        each_form!(&self.form, entries => entries.len())
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        each_form!(&self.form, entries => entries.newest())
    }

    #[inline]
    pub(crate) fn apply<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let hint = |limit: usize| self.hints[limit].wrapping_sub(self.dropped) as usize;
        let survey = each_form!(&self.form, entries => survey::<N>(entries, op, now, hint));
        for (hint, span) in self.hints.iter_mut().zip(&survey.spans) {
            *hint = self.dropped.wrapping_add(span.start as u32);
        }
        if let Some((verdict, entry)) = op.id.and_then(|id| self.named(id, op, survey.now)) {
            return each_form!(&self.form, entries => survey.facts(entries, op.cost, verdict, Outcome::Repeated(entry)));
        }
        let admitted = survey.admitted;
        if !op.appends(admitted) {
            return each_form!(&self.form, entries => survey.facts(entries, op.cost, admitted, Outcome::Nothing));
        }
        let expired = survey.expired();
        self.drop_front(expired);
        let number = self.push(survey.now, op.cost);
        let survey = survey.appended(op.cost, expired);
        let outcome = Outcome::Appended(Entry { id: EntryId::from_u128(u128::from(number)), at: survey.now });
        let facts = each_form!(&self.form, entries => survey.facts(entries, op.cost, admitted, outcome));
        if !admitted {
            self.drop_beyond(op.policy.largest_max());
        }
        self.keep = Keep::for_append(op);
        if self.ids.is_some() || op.id.is_some() {
            self.name(op.id, Named { number, admitted });
        }
        facts
    }

    #[inline]
    fn drop_front(&mut self, dropped: usize) {
        self.dropped = self.dropped.wrapping_add(dropped as u32);
        each_form!(&mut self.form, entries => entries.drop_front(dropped));
    }

    /// Drops all entries older than the newest ones that together hold at least `most`.
    fn drop_beyond(&mut self, most: u64) {
        let beyond = each_form!(&self.form, entries => entries.beyond(most));
        self.drop_front(beyond);
    }

    #[inline]
    fn push(&mut self, at: Timestamp, cost: u64) -> u64 {
        match &mut self.form {
            Form::Narrow(units) if cost == 1 && units.takes(at) => units.push(at),
            Form::Wide(units) if cost == 1 => units.push(at),
            Form::Weighted(weighted) => weighted.push(at, cost),
            _ => self.push_outgrowing(at, cost),
        }
    }

    /// Appends an entry for which the form may have to change.
    #[cold]
    fn push_outgrowing(&mut self, at: Timestamp, cost: u64) -> u64 {
        if cost != 1 {
            return self.weighted().push(at, cost);
        }
        if let Form::Narrow(narrow) = &mut self.form {
            narrow.rebase();
            if narrow.takes(at) {
                return narrow.push(at);
            }
            let mut wide = Units::new(narrow.first_number(), narrow.len() + 1);
            for i in 0..narrow.len() {
                wide.push(narrow.at(i));
            }
            self.form = Form::Wide(wide);
        }
        self.push(at, cost)
    }

    /// The entries with their costs.
    fn weighted(&mut self) -> &mut Weighted {
        match &self.form {
            Form::Narrow(units) => self.form = Form::Weighted(Weighted::from_units(units)),
            Form::Wide(units) => self.form = Form::Weighted(Weighted::from_units(units)),
            Form::Weighted(_) => {}
        }
        match &mut self.form {
            Form::Weighted(weighted) => weighted,
            _ => unreachable!("the entries have just been given costs"),
        }
    }

    fn find(&self, number: u64) -> Option<usize> {
        each_form!(&self.form, entries => entries.find(number))
    }

    fn at(&self, i: usize) -> Timestamp {
        each_form!(&self.form, entries => entries.at(i))
    }

    fn first_number(&self) -> u64 {
        each_form!(&self.form, entries => entries.first_number())
    }

    /// Names the entry just appended, and forgets the names of those that it made the log drop.
    #[cold]
    fn name(&mut self, id: Option<EntryId>, named: Named) {
        let first = self.first_number();
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
        let at = self.at(self.find(number)?);
        let entry = Entry { id: EntryId::from_u128(u128::from(number)), at };
        op.policy.longest_window().counts(at, now).then_some((admitted, entry))
    }

    /// Sets the cost of the entry with this number and time, or removes it; `false` if there is none.
    pub(crate) fn settle(&mut self, number: u64, at: Timestamp, cost: u64) -> bool {
        let Some(i) = self.find(number).filter(|&i| self.at(i) == at) else { return false };
        if cost != 1 || matches!(self.form, Form::Weighted(_)) {
            self.weighted().settle(i, cost);
            self.drop_beyond(MAX_COST);
        }
        let first = self.first_number();
        if let Some(ids) = &mut self.ids {
            if cost == 0 {
                ids.remove(number);
            }
            ids.drop_before(first);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_outgrow_their_range_are_rebased_or_widened() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let half = u64::from(u32::MAX / 2);
        let mut log = Many::new(&Few::new(0));
        log.push(at(5), 1);
        log.push(at(half + 10), 1);
        log.drop_front(1);
        log.push(at(2 * half + 9), 1);
        assert!(matches!(log.form, Form::Narrow(_)));
        assert_eq!((log.at(0), log.at(1)), (at(half + 10), at(2 * half + 9)));
        log.push(at(4 * half), 1);
        assert!(matches!(log.form, Form::Wide(_)));
        assert_eq!((log.at(0), log.at(1), log.at(2)), (at(half + 10), at(2 * half + 9), at(4 * half)));
        assert_eq!((log.find(0), log.find(1), log.find(3), log.find(4)), (None, Some(0), Some(2), None));
    }
}
