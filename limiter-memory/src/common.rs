//! An operation of the common sort, with nothing unusual about it. The same as [`apply`](crate::apply), in so few steps
//! that its facts need never be written to memory.

use limiter_core::{Entry, EntryId, Facts, Op, Outcome, PerLimit, Timestamp, Usage};

use crate::entries::Entries;

/// Applies an operation under `N` limits, or `None`, without a change, where there is more to it: the entry
/// outgrows the log's form, is appended in spite of a denial, or usage is above a maximum.
#[inline(always)]
pub(crate) fn apply_common<const N: usize>(entries: &mut impl Entries, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
    let newest = entries.newest();
    let now = newest.map_or(now, |newest| newest.max(now));
    if op.id.is_some() || !entries.takes(op, 0) {
        return None;
    }
    let all = op.policy.limits();
    let limit = |i| if N == 1 { op.policy.only_limit() } else { all.item(i) };
    let (mut starts, mut usage) = ([usize::MAX; N], [Usage::default(); N]);
    let (mut admitted, mut above) = (true, false);
    for i in 0..N {
        starts[i] = entries.start::<N>(i, limit(i).window(), now);
        usage[i].used = entries.cost_from(starts[i]);
        admitted &= usage[i].used + op.cost <= limit(i).max();
        above |= usage[i].used > limit(i).max();
        usage[i].oldest = if usage[i].used > 0 { entries.at(starts[i]) } else { now };
    }
    if !op.appends(admitted) {
        if above {
            return None;
        }
        for i in 0..N {
            let room = (usage[i].used + op.cost).saturating_sub(limit(i).max());
            usage[i].blocker = if room <= 1 { usage[i].oldest } else { entries.at(entries.reaching(starts[i], room)) };
        }
        let usage = PerLimit::from_array(usage, N);
        return Some(Facts { now, admitted, outcome: Outcome::Nothing, newest, usage });
    }
    if !admitted {
        return None;
    }
    let expired = starts.iter().fold(usize::MAX, |first, start| first.min(*start));
    let number = entries.push(expired, op, now);
    for usage in &mut usage {
        usage.used += op.cost;
        usage.blocker = usage.oldest;
    }
    let entry = Entry { id: EntryId::from_u128(u128::from(number)), at: now };
    let usage = PerLimit::from_array(usage, N);
    Some(Facts { now, admitted, outcome: Outcome::Appended(entry), newest: Some(now), usage })
}
