//! The ring: a log of any number of entries without ids, in one block of memory.

use limiter_core::Timestamp;
use limiter_core::store::Op;

use super::encoding::{Encoding, can_encode};
use super::header::{Format, Narrow, NarrowCosts, Oldest, RingHeader, with_format};
use super::lifetime::Lifetime;
use super::view::View;

/// Longer logs become sparse, because a ring counts in 32 bits. In tests, the bound is low enough to reach.
pub(crate) const MAX_LEN: usize = if cfg!(test) { 1 << 17 } else { 1 << 31 };

/// The capacity of a new ring.
const SMALLEST: usize = 8;

#[derive(Clone)]
pub(crate) struct Ring {
    /// The entries, then the hints.
    words: Box<[u32]>,
    pub(crate) header: RingHeader,
}

impl Ring {
    /// Returns a ring of the entries from `from` on that can push the operation's entry. It starts from this format and takes a
    /// wider one if necessary.
    pub(crate) fn copy_of(
        log: &View<'_, impl Encoding>,
        from: usize,
        op: &Op<'_>,
        kept: Lifetime,
        mut format: Format,
    ) -> Self {
        format.costs |= op.cost != 1;
        format.hints |= op.policy.limits().len() > 1;
        let held = log.cost_from(from);
        format.wide |= !if format.costs {
            can_encode::<NarrowCosts>(op, held)
        } else {
            can_encode::<Narrow>(op, held)
        };
        with_format!(format, E => Self::copy::<E>(log, from, kept))
    }

    fn copy<E: Encoding<Header = RingHeader>>(
        log: &View<'_, impl Encoding>,
        from: usize,
        kept: Lifetime,
    ) -> Self {
        let len = log.len() - from;
        let capacity = (len + 2).next_power_of_two().max(SMALLEST);
        let newest = log.newest().unwrap_or(Timestamp::EPOCH);
        let words = vec![0; E::HINTS + capacity * E::WORDS].into_boxed_slice();
        let mut ring = Self {
            words,
            header: RingHeader::new::<E>(log.number(from), len, newest, kept),
        };
        let (all, mut view) = (log.cost_from(from), ring.view::<E>(None));
        for i in 0..len {
            view.write(i, log.at(from + i), all - log.cost_from(from + i + 1));
        }
        ring
    }

    /// Returns the entries in the encoding that the ring [has](RingHeader::is).
    #[inline(always)]
    pub(crate) fn view<'a, E: Encoding<Header = RingHeader>>(
        &'a mut self,
        oldest: Option<&'a mut Oldest>,
    ) -> View<'a, E> {
        debug_assert!(self.header.is::<E>());
        let newest = self.header.newest();
        View::new(&mut self.words, &mut self.header, newest, oldest)
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Policy, Window, policy};

    use super::*;
    use crate::evaluate::general::apply;
    use crate::log::encoding::Header;
    use crate::log::header::HINTS;
    use crate::log::inline::{Inline, NUMBERS};
    use crate::log::{LogForm, with_entries};

    const TWO: Policy = policy!("1000/1s, 1000/1m");

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    /// Appends an entry, and returns the ring's format, words and length, if the log is a ring.
    fn append(
        log: &mut LogForm,
        policy: &Policy,
        cost: u64,
        micros: u64,
    ) -> Option<(Format, usize, usize)> {
        let facts = apply(
            log,
            Op::acquire("", policy).with_cost(cost).at(at(micros)),
            at(micros),
        );
        assert_eq!((facts.admitted, log.newest()), (true, Some(at(micros))));
        assert_eq!(
            with_entries!(log, entries => (entries.at(entries.len() - 1), entries.cost_from(0)), _ => panic!("sparse")),
            (at(micros), facts.log.usage[0].used)
        );
        let LogForm::Ring(ring) = log else {
            return None;
        };
        Some((ring.header.format(), ring.words.len(), ring.header.len()))
    }

    #[test]
    fn a_ring_that_empties_shrinks() {
        let (second, policy) = (1_000_000, policy!("1000000/1s"));
        let mut log = LogForm::new(NUMBERS - 20_000);
        let mut append = |micros| append(&mut log, &policy, 1, micros);
        let mut last =
            |micros: &mut dyn Iterator<Item = u64>| micros.map(&mut append).last().unwrap();
        last(&mut (0..100_000));
        let since = second + 99_990;
        assert_eq!(
            last(&mut (since..=since)),
            Some((Format::default(), 1 << 17, 10))
        );
        let slowly = &mut (1..=3 << 17).map(|i| since + i * second / 11);
        assert_eq!(last(slowly), Some((Format::default(), 2 * SMALLEST, 11)));
    }

    #[test]
    fn a_new_ring_leaves_out_expired_entries_and_has_hints_for_several_limits() {
        let (one, mut log) = (policy!("1000/1s"), LogForm::new(0));
        assert!(
            (0..100).all(|micros| append(&mut log, &one, 1, micros).is_some() == (micros >= 4))
        );
        let costs = Format {
            costs: true,
            ..Format::default()
        };
        let hints = Format {
            hints: true,
            ..costs
        };
        for (policy, cost, micros, expected) in [
            (&one, 1, 100, (Format::default(), 128, 101)),
            (&one, 2, 2_000_000, (costs, 2 * SMALLEST, 1)),
            (&TWO, 1, 2_000_000, (hints, 2 * SMALLEST + HINTS, 2)),
        ] {
            assert_eq!(append(&mut log, policy, cost, micros), Some(expected));
        }
    }

    #[test]
    fn every_start_is_found_from_every_hint() {
        let policy = TWO;
        let op = Op::acquire("", &policy);
        let mut ring = Ring::copy_of(
            &Inline::new(9).view(),
            0,
            &op,
            Lifetime::default(),
            Format::default(),
        );
        // In the end the numbers overflow between the first and the last entry.
        ring.header.set_range(u32::MAX - 32, 0);
        // Behind the newest entry are dropped ones.
        for micros in 0..40 {
            let mut view = ring.view::<Narrow<HINTS>>(None);
            let dropped = usize::from(view.len() == 13);
            if view.can_push(&op, dropped) {
                view.push(dropped, &op, at(10 * micros));
            } else {
                ring = Ring::copy_of(&view, dropped, &op, Lifetime::default(), Format::default());
                ring.view::<Narrow<HINTS>>(None)
                    .push(0, &op, at(10 * micros));
            }
        }
        let mut view = ring.view::<Narrow<HINTS>>(None);
        let first = view.at(0).as_micros();
        for window in (5..200)
            .step_by(5)
            .map(|micros| Window::from_micros(micros).unwrap())
        {
            for now in [390, 391, 395, 400, 450, 600].map(at) {
                let counts = |i: &usize| window.counts(view.at(*i), now);
                let start = (0..view.len()).find(counts).unwrap_or(view.len());
                let wanted = (
                    start,
                    if start < view.len() {
                        view.at(start)
                    } else {
                        now
                    },
                );
                for hint in 0..=view.len() + 1 {
                    let what = format!("{window:?} at {now:?} from {hint}, since {first}");
                    view.remember_starts([(0, now), (hint, now)].into_iter());
                    assert_eq!(view.window_start(1, window, now), wanted, "{what}");
                }
            }
        }
    }
}
