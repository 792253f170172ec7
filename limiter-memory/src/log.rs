//! One key's log.

use limiter_core::{Facts, MAX_LIMITS, Op, Receipt, Timestamp};

use crate::apply::{apply, outgrows};
use crate::entries::Entries;
use crate::few::Few;
use crate::keep::Keep;
use crate::layout::{Form, Narrow, NarrowCosts, Wide, WideCosts};
use crate::many::Many;
use crate::ring::{HINTS, Ring, View, with_entries};

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
            Log::Ring(ring) => with_entries!(ring, $entries => $body),
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
                    return Common::Units(ring.view());
                }
                less_common();
                if ring.is::<NarrowCosts, H>() {
                    Common::Costs(ring.view())
                } else if ring.is::<Wide, H>() {
                    Common::Wide(ring.view())
                } else if ring.is::<WideCosts, H>() {
                    Common::WideCosts(ring.view())
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
        if each_form!(self, entries => outgrows::<N>(entries, op, now)) {
            self.outgrow(op);
        }
        if N > 1
            && let Self::Ring(ring) = self
        {
            ring.hint();
        }
        each_form!(self, entries => apply::<N>(entries, op, now))
    }

    /// Takes a form that takes the operation's entry.
    #[cold]
    fn outgrow(&mut self, op: &Op<'_>) {
        let keep = self.keep();
        let form = match self {
            Self::Ring(ring) => ring.form(),
            Self::Other(_) => Form::default(),
        };
        *self = Self::Ring(each_form!(self, entries => Ring::holding(entries, op, keep, form)));
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

    /// Sets the cost of the entry that the receipt names, or removes it; `false` if there is none.
    pub(crate) fn settle(&mut self, receipt: &Receipt, cost: u64, now: Timestamp) -> bool {
        let now = self.newest().map_or(now, |newest| newest.max(now));
        if receipt.has_left(now) {
            return false;
        }
        let Ok(number) = u32::try_from(receipt.entry().as_u128()) else { return false };
        // A receipt of no entry here must not cost memory.
        let found = each_form!(self, entries => {
            entries.find(number).filter(|&i| entries.at(i) == receipt.at())
                .map(|i| (i, entries.cost_from(i) - entries.cost_from(i + 1)))
        });
        let Some((i, before)) = found else { return false };
        if cost != before {
            self.many().settle(i, cost);
        }
        true
    }
}

/// Tells the compiler to test for the other case first.
#[cold]
fn less_common() {}

/// The forms of a log that take the short way.
pub(crate) enum Common<'a, const H: usize> {
    Few(&'a mut Few),
    Units(View<'a, Narrow, H>),
    Costs(View<'a, NarrowCosts, H>),
    Wide(View<'a, Wide, H>),
    WideCosts(View<'a, WideCosts, H>),
    None,
}
