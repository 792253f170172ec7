//! The fast version: the common operations, with the number of limits as a constant. [`general`](super::general) explains each
//! step.

use limiter_core::internal::{self, SizedFacts};
use limiter_core::store::{Entry, EntryId, Op, Outcome};
use limiter_core::{Limit, Timestamp};

use super::counted::Counted;
use crate::log::encoding::Encoding;
use crate::log::view::View;

/// A common operation under `LIMITS` limits.
pub(super) struct Fast<'a, const LIMITS: usize> {
    pub(super) limits: &'a [Limit; LIMITS],
    pub(super) counted: Counted<'a, LIMITS>,
}

impl<'a, const LIMITS: usize> Fast<'a, LIMITS> {
    /// Evaluates the limits. Returns `None` if the operation is not a common one.
    #[inline(always)]
    pub(super) fn new(
        entries: &mut View<'_, impl Encoding>,
        op: &Op<'a>,
        now: Timestamp,
    ) -> Option<Self> {
        let limits = internal::limits_array(op.policy)?;
        if op.id.is_some() || op.limiter_policy.is_some() {
            return None;
        }
        Some(Self {
            limits,
            counted: Counted::new(limits, entries, op, now),
        })
    }

    /// Appends the entry of an admitted operation.
    #[inline(always)]
    pub(super) fn append(
        mut self,
        entries: &mut View<'_, impl Encoding>,
        op: &Op<'_>,
    ) -> SizedFacts<LIMITS> {
        let Counted { now, clock, .. } = self.counted;
        let number = entries.push(self.counted.expired(), op, now);
        for usage in &mut self.counted.usage {
            usage.used += op.cost;
            usage.blocker = usage.oldest;
        }
        let entry = Entry {
            id: EntryId::from_u128(u128::from(number)),
            at: now,
        };
        SizedFacts {
            admitted: true,
            outcome: Outcome::Appended(entry),
            now,
            clock,
            newest: Some(now),
            usage: self.counted.usage,
        }
    }

    /// Returns the facts about an operation that does not append. `None` if usage exceeds a maximum.
    #[inline(always)]
    pub(super) fn facts(
        mut self,
        entries: &View<'_, impl Encoding>,
        op: &Op<'_>,
    ) -> Option<SizedFacts<LIMITS>> {
        for (i, usage) in self.counted.usage.iter_mut().enumerate() {
            let max = self.limits[i].max();
            if usage.used > max {
                return None;
            }
            let missing = (usage.used + op.cost).saturating_sub(max);
            usage.blocker = if missing <= 1 {
                usage.oldest
            } else {
                // Not in a closure, which would keep the usage in memory.
                entries.at(entries.reaching(self.counted.starts[i], missing))
            };
        }
        let Counted {
            now,
            clock,
            admitted,
            usage,
            ..
        } = self.counted;
        Some(SizedFacts {
            admitted,
            outcome: Outcome::Nothing,
            now,
            clock,
            newest: entries.newest(),
            usage,
        })
    }
}

/// Returns the result from the surrounding function if the operation is a common one. A macro, because each form and each
/// verdict must return separately: facts merged at one return would be written to memory.
macro_rules! try_fast {
    ($limits:expr, $entries:expr, $op:expr, $now:expr, $unlock:expr) => {{
        let entries = $entries;
        if let Some(fast) = $crate::evaluate::fast::Fast::<{ $limits }>::new(entries, $op, $now) {
            let limits = fast.limits;
            if $op.appends(fast.counted.admitted) {
                // Appending in spite of a denial takes the general version, and so does a conversion.
                if fast.counted.admitted && entries.can_push($op, fast.counted.expired()) {
                    let facts = fast.append(entries, $op);
                    $unlock;
                    return A::from_fast($op, limits, facts);
                }
            } else if let Some(facts) = fast.facts(entries, $op) {
                $unlock;
                return A::from_fast($op, limits, facts);
            }
        }
    }};
}
pub(super) use try_fast;
