//! An operation of the common sort: under one limit, and nothing unusual about it. The same as [`apply`](crate::apply),
//! in so few steps that its facts need never be written to memory.

use limiter_core::{Entry, EntryId, Facts, Limit, Op, Outcome, PerLimit, Timestamp, Usage};

use crate::entries::Entries;

/// Applies an operation under one limit, or `None`, without a change, where there is more to it: the entry outgrows the
/// log's form, is appended in spite of a denial, or usage is above the maximum.
#[inline(always)]
pub(crate) fn apply_one(entries: &mut impl Entries, op: &Op<'_>, limit: Limit, now: Timestamp) -> Option<Facts> {
    let newest = entries.newest();
    let now = newest.map_or(now, |newest| newest.max(now));
    if !entries.takes(op, now, 0) {
        return None;
    }
    let start = entries.start(0, limit.window(), now);
    let used = entries.cost_from(start);
    let admitted = used + op.cost <= limit.max();
    if !op.appends(admitted) {
        let mut usage = Usage { used, ..Usage::default() };
        if used > 0 {
            if used > limit.max() {
                return None;
            }
            usage.oldest = entries.at(start);
            let room = (used + op.cost).saturating_sub(limit.max());
            usage.blocker = if room <= 1 { usage.oldest } else { entries.at(entries.reaching(start, room)) };
        }
        return Some(Facts { now, admitted, outcome: Outcome::Nothing, newest, usage: PerLimit::one(usage) });
    }
    if !admitted {
        return None;
    }
    entries.drop_front(start);
    let number = entries.push(op, now);
    let oldest = entries.at(0);
    let usage = PerLimit::one(Usage { used: used + op.cost, oldest, blocker: oldest });
    let entry = Entry { id: EntryId::from_u128(u128::from(number)), at: now };
    Some(Facts { now, admitted, outcome: Outcome::Appended(entry), newest: Some(now), usage })
}
