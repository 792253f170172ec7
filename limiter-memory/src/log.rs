//! One key's log.

use crate::apply::Survey;
use crate::entries::{Entries, rarely};
use crate::few::Few;
use crate::form::{Form, in_form};
use crate::keep::Keep;
use crate::layout::{Layout, Narrow, NarrowCosts, Wide, WideCosts};
use crate::many::Many;
use crate::ring::{Ring, View};
use limiter_core::store::{Facts, Mode, Op, Settlement, SettlementFacts};
use limiter_core::{MAX_LIMITS, Timestamp};

/// A key's entries in the smallest form that takes them: four words in the map, and a block of memory elsewhere once
/// there are more than a few. A log outgrows its form and does not return.
pub(crate) enum Log {
    Ring(Ring),
    Other(Other),
}

/// Nested, because so both tags find room in bytes that are there anyway.
pub(crate) enum Other {
    Few(Few),
    Many(Box<Many>),
}

macro_rules! each_form {
    ($log:expr, $entries:ident => $body:expr) => {
        match $log {
            Log::Ring(ring) => in_form!(ring.form(), L, H => {
                let $entries = &mut ring.view::<L, H>();
                $body
            }),
            Log::Other(Other::Few($entries)) => $body,
            Log::Other(Other::Many($entries)) => { let $entries = &mut **$entries; $body }
        }
    };
}

impl Log {
    /// An empty log whose first entry will have this number, of 24 bits.
    pub(crate) fn new(number: u32) -> Self {
        Self::Other(Other::Few(Few::new(number)))
    }

    /// The entries in a form that takes the short way: with hints if there are several limits, and without for one.
    #[inline(always)]
    pub(crate) fn common<const H: usize>(&mut self) -> Common<'_, H> {
        match self {
            Self::Ring(ring) => {
                if ring.is::<Narrow, H>() {
                    return short(ring, Common::Units);
                }
                rarely();
                if ring.is::<NarrowCosts, H>() {
                    short(ring, Common::Costs)
                } else if ring.is::<Wide, H>() {
                    short(ring, Common::Wide)
                } else if ring.is::<WideCosts, H>() {
                    short(ring, Common::WideCosts)
                } else {
                    Common::None
                }
            }
            Self::Other(Other::Few(few)) => Common::Few(few),
            Self::Other(Other::Many(_)) => Common::None,
        }
    }

    #[inline(never)]
    pub(crate) fn apply(&mut self, op: Op<'_>, now: Timestamp) -> Facts {
        match op.policy.limits().len() {
            1 => self.apply_sized::<1>(&op, now),
            _ => self.apply_sized::<MAX_LIMITS>(&op, now),
        }
    }

    fn apply_sized<const N: usize>(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        if let Self::Other(Other::Many(many)) = self {
            return many.apply::<N>(op, now);
        }
        if op.id.is_some() {
            return self.many().apply::<N>(op, now);
        }
        let outgrown = each_form!(self, entries => {
            let survey = Survey::<N>::new(entries, op, now);
            if !survey.outgrows(entries, op) {
                return survey.apply(entries, op);
            }
            survey.expired(entries, op)
        });
        if self.len() - outgrown >= most_in_a_ring() {
            return self.many().apply::<N>(op, now);
        }
        self.outgrow(outgrown, op);
        each_form!(self, entries => Survey::<N>::new(entries, op, now).apply(entries, op))
    }

    /// Drops the first entries and takes a form that takes the operation's entry.
    #[cold]
    fn outgrow(&mut self, dropped: usize, op: &Op<'_>) {
        let keep = self.keep();
        let form = match self {
            Self::Ring(ring) => ring.form(),
            Self::Other(_) => Form::default(),
        };
        *self = Self::Ring(each_form!(self, entries => Ring::holding(entries, dropped, op, keep, form)));
    }

    /// The same log in the form that takes everything.
    fn many(&mut self) -> &mut Many {
        if !matches!(self, Self::Other(Other::Many(_))) {
            let keep = self.keep();
            let many = each_form!(self, entries => Many::holding(entries, keep));
            *self = Self::Other(Other::Many(Box::new(many)));
        }
        match self {
            Self::Other(Other::Many(many)) => many,
            _ => unreachable!("the log has just taken this form"),
        }
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Ring(ring) => ring.newest(),
            Self::Other(Other::Few(few)) => few.newest(),
            Self::Other(Other::Many(many)) => many.newest(),
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        match self {
            Self::Ring(ring) => ring.keep(),
            Self::Other(Other::Few(few)) => few.keep(),
            Self::Other(Other::Many(many)) => many.keep,
        }
    }

    /// How many entries the log holds.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ring(ring) => ring.len(),
            Self::Other(Other::Few(few)) => few.len(),
            Self::Other(Other::Many(many)) => many.len(),
        }
    }

    /// Sets the cost of the entry that the receipt names, or removes it.
    pub(crate) fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> SettlementFacts {
        let now = self.newest().map_or(now, |newest| newest.max(now));
        let applied = self.replace_cost(settlement, now);
        let op = Op::new(Mode::Peek, settlement.log.key, settlement.policy);
        let log = each_form!(self, entries => Survey::<MAX_LIMITS>::new(entries, &op, now).log_facts(entries));
        SettlementFacts { applied, log }
    }

    /// `false` if there is no such entry.
    fn replace_cost(&mut self, Settlement { receipt, cost, .. }: &Settlement<'_>, now: Timestamp) -> bool {
        if receipt.has_left(now) {
            return false;
        }
        let Ok(number) = u64::try_from(receipt.entry().as_u128()) else { return false };
        // A receipt of no entry here must not cost memory.
        let found = each_form!(self, entries => {
            entries.find(number).filter(|&i| entries.at(i) == receipt.at())
                .map(|i| (i, entries.cost_from(i) - entries.cost_from(i + 1)))
        });
        let Some((i, before)) = found else { return false };
        if *cost != before {
            self.many().settle(i, *cost);
        }
        true
    }
}

#[cfg(not(test))]
const fn most_in_a_ring() -> usize {
    crate::ring::MOST
}

#[cfg(test)]
fn most_in_a_ring() -> usize {
    tests::MOST.get()
}

#[inline(always)]
fn short<'a, L: Layout, const H: usize>(
    ring: &'a mut Ring,
    common: impl FnOnce(View<'a, L, H>) -> Common<'a, H>,
) -> Common<'a, H> {
    let view = ring.view();
    if view.has_no_room() { Common::None } else { common(view) }
}

/// The forms of a log that take the short way.
pub(crate) enum Common<'a, const H: usize> {
    Few(&'a mut Few),
    Units(View<'a, Narrow, H>),
    Costs(View<'a, NarrowCosts, H>),
    Wide(View<'a, Wide, H>),
    WideCosts(View<'a, WideCosts, H>),
    None,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use limiter_core::store::{LogKey, Outcome};
    use limiter_core::{Name, Receipt, policy};

    use super::*;

    thread_local! {
        /// A stand-in for the most entries of a ring, which would take 8 GiB.
        pub(super) static MOST: Cell<usize> = const { Cell::new(crate::ring::MOST) };
    }

    #[test]
    fn a_log_longer_than_a_ring_goes_on_in_the_sparse_form() {
        MOST.set(100);
        let (policy, at) = (policy!("1000/1s"), |micros| Timestamp::from_micros((1 << 50) + micros).unwrap());
        let mut log = Log::new(u32::MAX - 150);
        let mut receipts = Vec::new();
        for i in 0..1_000 {
            let facts = log.apply(Op::acquire("", &policy).at(at(i)), at(i));
            assert_eq!((facts.admitted, facts.log.usage[0].used), (true, i + 1));
            let Outcome::Appended(entry) = facts.outcome else { panic!("not appended") };
            receipts.push(Receipt::new(entry.id, entry.at, policy.longest_window()));
            // A ring is filled before it is left.
            assert_eq!(matches!(log, Log::Ring(_)), (4..127).contains(&i), "after {i}");
        }
        assert!(!log.apply(Op::acquire("", &policy).at(at(1_000)), at(1_000)).admitted);
        let settle = |log: &mut Log, receipt, cost| {
            let settlement = Settlement::new(LogKey::new(Name::default(), ""), &policy, receipt, cost);
            log.settle(&settlement, at(1_000))
        };
        for (i, receipt) in receipts.iter().enumerate().step_by(7) {
            assert!(settle(&mut log, *receipt, 0).applied, "entry {i}");
            assert!(!settle(&mut log, *receipt, 0).applied, "entry {i}");
        }
        assert_eq!(log.len(), 1_000 - receipts.len().div_ceil(7));
    }
}
