//! An operation of the common sort, with nothing unusual about it. The same as [`apply`](crate::apply), in so few steps
//! that its facts need never be written to memory.

use std::hint::select_unpredictable;

use limiter_core::{Entry, EntryId, Facts, Op, Outcome, PerLimit, Timestamp, Usage};

use crate::entries::Entries;

/// What an operation under `N` limits finds, before it changes anything.
pub(crate) struct Look<const N: usize> {
    pub(crate) admitted: bool,
    now: Timestamp,
    newest: Option<Timestamp>,
    starts: [usize; N],
    usage: [Usage; N],
}

impl<const N: usize> Look<N> {
    /// Looks, unless it is not a common operation.
    #[inline(always)]
    pub(crate) fn new(entries: &mut impl Entries, op: &Op<'_>, now: Timestamp) -> Option<Self> {
        if op.id.is_some() {
            return None;
        }
        let newest = entries.newest();
        let now = entries.not_before(now);
        let (mut admitted, mut starts, mut usage) = (true, [0; N], [Usage::default(); N]);
        let limits = op.policy.first_limits::<N>();
        for i in 0..N {
            let limit = limits[i];
            starts[i] = entries.start::<N>(i, limit.window(), now);
            usage[i].used = entries.cost_from(starts[i]);
            // Where nothing counts this is any time. Whether something does, of a key that is seen now and then, cannot be
            // foretold.
            let oldest = entries.at(starts[i]);
            usage[i].oldest = select_unpredictable(usage[i].used > 0, oldest, now);
            admitted &= usage[i].used + op.cost <= limit.max();
        }
        // Only then, so that the compiler knows that nothing has changed meanwhile.
        for (i, start) in starts.iter().enumerate() {
            entries.remember(i, *start);
        }
        Some(Self { admitted, now, newest, starts, usage })
    }

    /// How many of the first entries count in no window.
    #[inline(always)]
    fn expired(&self) -> usize {
        self.starts.iter().fold(usize::MAX, |first, start| first.min(*start))
    }

    /// Whether the log's form takes the entry.
    #[inline(always)]
    pub(crate) fn is_taken(&self, entries: &impl Entries, op: &Op<'_>) -> bool {
        entries.takes::<N>(op, self.expired())
    }

    /// Appends the entry of an operation that is admitted.
    #[inline(always)]
    pub(crate) fn append(mut self, entries: &mut impl Entries, op: &Op<'_>) -> Facts {
        let now = self.now;
        let number = entries.push(self.expired(), op, now);
        for usage in &mut self.usage {
            usage.used += op.cost;
            usage.blocker = usage.oldest;
        }
        let entry = Entry { id: EntryId::from_u128(u128::from(number)), at: now };
        let usage = PerLimit::from_array(self.usage, N);
        Facts { now, admitted: true, outcome: Outcome::Appended(entry), newest: Some(now), usage }
    }

    /// The facts about an operation that appends nothing, or `None` where usage is above a maximum.
    #[inline(always)]
    pub(crate) fn facts(mut self, entries: &impl Entries, op: &Op<'_>) -> Option<Facts> {
        let limits = op.policy.first_limits::<N>();
        for (i, usage) in self.usage.iter_mut().enumerate() {
            let max = limits[i].max();
            if usage.used > max {
                return None;
            }
            let room = (usage.used + op.cost).saturating_sub(max);
            usage.blocker = if room <= 1 { usage.oldest } else { entries.at(entries.reaching(self.starts[i], room)) };
        }
        let usage = PerLimit::from_array(self.usage, N);
        let Self { now, admitted, newest, .. } = self;
        Some(Facts { now, admitted, outcome: Outcome::Nothing, newest, usage })
    }
}
