//! An operation of the common sort, with nothing unusual about it. The same as [`apply`](crate::apply), in so few steps
//! that its facts need never be written to memory.

use limiter_core::{Entry, EntryId, Facts, Op, Outcome, PerLimit, Timestamp, Usage};

use crate::entries::Entries;

/// Applies an operation under at most `N` limits, or `None`, without a change, where there is more to it: the entry
/// outgrows the log's form, is appended in spite of a denial, or usage is above a maximum.
#[inline(always)]
pub(crate) fn apply_common<const N: usize>(entries: &mut impl Entries, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
    let newest = entries.newest();
    let now = newest.map_or(now, |newest| newest.max(now));
    if !entries.takes(op, now, 0) {
        return None;
    }
    let limits = op.policy.limits();
    let len = if N == 1 { 1 } else { limits.len().min(N) };
    let (mut starts, mut usage) = ([usize::MAX; N], [Usage::default(); N]);
    let (mut admitted, mut above) = (true, false);
    for i in 0..len {
        starts[i] = entries.start(i, limits[i].window(), now);
        usage[i].used = entries.cost_from(starts[i]);
        admitted &= usage[i].used + op.cost <= limits[i].max();
        above |= usage[i].used > limits[i].max();
    }
    let appends = op.appends(admitted);
    if above || appends && !admitted {
        return None;
    }
    if !appends {
        for i in 0..len {
            let Usage { used, .. } = usage[i];
            if used > 0 {
                usage[i].oldest = entries.at(starts[i]);
                let room = (used + op.cost).saturating_sub(limits[i].max());
                usage[i].blocker =
                    if room <= 1 { usage[i].oldest } else { entries.at(entries.reaching(starts[i], room)) };
            }
        }
        let usage = PerLimit::from_array(usage, len);
        return Some(Facts { now, admitted, outcome: Outcome::Nothing, newest, usage });
    }
    let expired = starts.iter().fold(usize::MAX, |first, start| first.min(*start));
    entries.drop_front(expired);
    let number = entries.push(op, now);
    for i in 0..len {
        let oldest = entries.at(starts[i] - expired);
        usage[i] = Usage { used: usage[i].used + op.cost, oldest, blocker: oldest };
    }
    let entry = Entry { id: EntryId::from_u128(u128::from(number)), at: now };
    let usage = PerLimit::from_array(usage, len);
    Some(Facts { now, admitted, outcome: Outcome::Appended(entry), newest: Some(now), usage })
}
