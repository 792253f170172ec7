//! A log of any number of entries.

use limiter_core::{Entry, EntryId, Facts, MAX_COST, Op, Outcome, Timestamp};

use crate::apply::{apply, outgrows, repeat};
use crate::common::apply_common;
use crate::entries::Entries;
use crate::few::Few;
use crate::ids::{Ids, Named};
use crate::keep::Keep;
use crate::units::Units;
use crate::weighted::Weighted;

/// Entries in the smallest form that takes them.
#[derive(Debug)]
pub(crate) struct Many {
    form: Form,
    pub(crate) keep: Keep,
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
        let units = Units::from_entries(few, 8);
        Self { form: Form::Narrow(units), keep: few.keep, ids: None }
    }

    pub(crate) fn len(&self) -> usize {
        each_form!(&self.form, entries => entries.len())
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        each_form!(&self.form, entries => entries.newest())
    }

    /// As [`apply_common`].
    #[inline(always)]
    pub(crate) fn apply_common<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
        if op.id.is_some() || self.ids.is_some() {
            return None;
        }
        let facts = match &mut self.form {
            Form::Narrow(entries) => apply_common::<N>(entries, op, now),
            Form::Weighted(entries) => apply_common::<N>(entries, op, now),
            Form::Wide(_) => None,
        }?;
        if matches!(facts.outcome, Outcome::Appended(_)) {
            self.keep = Keep::for_append(op);
        }
        Some(facts)
    }

    #[inline]
    pub(crate) fn apply<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        if op.id.is_some() || self.ids.is_some() {
            return self.apply_named::<N>(op, now);
        }
        self.apply_unnamed::<N>(op, now)
    }

    #[inline]
    fn apply_unnamed<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        while each_form!(&mut self.form, entries => outgrows::<N>(entries, op, now)) {
            self.outgrow(op.cost);
        }
        let facts = each_form!(&mut self.form, entries => apply::<N>(entries, op, now));
        if matches!(facts.outcome, Outcome::Appended(_)) {
            self.keep = Keep::for_append(op);
        }
        facts
    }

    /// Takes a form that takes more: the next entry has this cost.
    #[cold]
    fn outgrow(&mut self, cost: u64) {
        match &mut self.form {
            Form::Narrow(narrow) if cost == 1 => {
                if !narrow.rebase() {
                    self.form = Form::Wide(Units::from_entries(narrow, narrow.len() + 1));
                }
            }
            _ => _ = self.weighted(),
        }
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

    /// Applies an operation where ids play a part.
    #[cold]
    fn apply_named<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let clamped = self.newest().map_or(now, |newest| newest.max(now));
        if let Some(original) = op.id.and_then(|id| self.named(id, op, clamped)) {
            return each_form!(&mut self.form, entries => repeat::<N>(entries, op, now, original));
        }
        let facts = self.apply_unnamed::<N>(op, now);
        if let Outcome::Appended(entry) = facts.outcome {
            let first = self.first_number();
            let ids = self.ids.get_or_insert_default();
            ids.drop_before(first);
            if let Some(id) = op.id {
                ids.insert(id, Named { number: entry.id.as_u128() as u64, admitted: facts.admitted });
            }
        }
        facts
    }

    /// The verdict on, and the name of, the entry with this id, if it still counts.
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
            let weighted = self.weighted();
            weighted.settle(i, cost);
            weighted.drop_beyond(MAX_COST);
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
    use limiter_core::{Limit, Policy, Window};

    use super::*;

    #[test]
    fn offsets_that_outgrow_their_range_are_rebased_or_widened() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let half = u64::from(u32::MAX / 2);
        let mut log = Many::new(&Few::new(0));
        let push = |log: &mut Many, micros, window: u64| {
            let window = Limit::over(9, Window::from_micros(window).unwrap()).unwrap();
            let policy = Policy::from(window);
            assert!(log.apply::<1>(&Op::acquire("", &policy), at(micros)).admitted);
        };
        push(&mut log, 5, half);
        push(&mut log, half + 10, half);
        push(&mut log, 2 * half + 9, half);
        assert!(matches!(log.form, Form::Narrow(_)));
        assert_eq!((log.at(0), log.at(1)), (at(half + 10), at(2 * half + 9)));
        push(&mut log, 4 * half, 8 * half);
        assert!(matches!(log.form, Form::Wide(_)));
        assert_eq!((log.at(0), log.at(1), log.at(2)), (at(half + 10), at(2 * half + 9), at(4 * half)));
        assert_eq!((log.find(0), log.find(1), log.find(3), log.find(4)), (None, Some(0), Some(2), None));
    }
}
