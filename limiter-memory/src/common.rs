//! An operation of the common sort, with nothing unusual about it. The same as [`apply`](crate::apply), in so few steps
//! that its facts need never be written to memory.

use limiter_core::internal::{self, SizedFacts};
use limiter_core::store::{Entry, Op, Outcome, Usage};
use limiter_core::{EntryId, Limit, Timestamp};
use std::hint::select_unpredictable;

use crate::entries::Entries;

/// What an operation under `N` limits finds, before it changes anything.
pub(crate) struct Look<'a, const N: usize> {
    pub(crate) limits: &'a [Limit; N],
    pub(crate) admitted: bool,
    now: Timestamp,
    starts: [usize; N],
    usage: [Usage; N],
}

impl<'a, const N: usize> Look<'a, N> {
    /// Looks, unless it is not a common operation.
    #[inline(always)]
    pub(crate) fn new(entries: &mut impl Entries, op: &Op<'a>, now: Timestamp) -> Option<Self> {
        let limits = internal::limits_array(op.policy)?;
        if op.id.is_some() || op.limiter_policy.is_some() {
            return None;
        }
        let now = entries.not_before(now);
        let (mut admitted, mut starts, mut usage) = (true, [0; N], [Usage::default(); N]);
        for i in 0..N {
            let limit: Limit = limits[i];
            let (start, oldest) = entries.first::<N>(i, limit.window(), now);
            starts[i] = start;
            usage[i].used = entries.cost_from(start);
            // Whether anything counts, of a key that is seen now and then, cannot be foretold.
            usage[i].oldest = select_unpredictable(usage[i].used > 0, oldest, now);
            admitted &= usage[i].used + op.cost <= limit.max();
        }
        // Only then, so that the compiler knows that nothing has changed meanwhile.
        entries.remember(starts.iter().copied());
        Some(Self { limits, admitted, now, starts, usage })
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
    pub(crate) fn append(mut self, entries: &mut impl Entries, op: &Op<'_>) -> SizedFacts<N> {
        let now = self.now;
        let number = entries.push(self.expired(), op, now);
        for usage in &mut self.usage {
            usage.used += op.cost;
            usage.blocker = usage.oldest;
        }
        let entry = Entry { id: EntryId::from_u128(u128::from(number)), at: now };
        SizedFacts { admitted: true, outcome: Outcome::Appended(entry), now, newest: Some(now), usage: self.usage }
    }

    /// The facts about an operation that appends nothing, or `None` where usage is above a maximum.
    #[inline(always)]
    pub(crate) fn facts(mut self, entries: &impl Entries, op: &Op<'_>) -> Option<SizedFacts<N>> {
        for (i, usage) in self.usage.iter_mut().enumerate() {
            let max = self.limits[i].max();
            if usage.used > max {
                return None;
            }
            let room = (usage.used + op.cost).saturating_sub(max);
            usage.blocker = if room <= 1 { usage.oldest } else { entries.at(entries.reaching(self.starts[i], room)) };
        }
        let Self { now, admitted, usage, .. } = self;
        Some(SizedFacts { admitted, outcome: Outcome::Nothing, now, newest: entries.newest(), usage })
    }
}
