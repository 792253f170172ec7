//! What a shard forgets: logs that have expired, and, where the number of keys is bounded, the least ones.

use std::mem;

use limiter_core::Timestamp;

use crate::key::Key;
use crate::line::Slot;
use crate::log::Log;
use crate::table::Table;

/// Forgets the logs for which `is_over` holds, and returns the memory that they took. Returns how many.
pub(crate) fn sweep(table: &mut Table, hash: impl Fn(&Key) -> u64, is_over: impl Fn(&Log) -> bool) -> usize {
    let before = table.len();
    table.retain(&hash, |slot| !is_over(&slot.log));
    table.shrink(hash);
    before - table.len()
}

/// Makes room for one more key without a bound: forgets the expired logs, and lets the table grow if these are few, so that
/// sweeping costs a constant per key on average.
pub(crate) fn sweep_or_grow(table: &mut Table, hash: impl Fn(&Key) -> u64, now: Timestamp) {
    sweep(table, &hash, |log| has_expired(log, now));
    table.reserve(table.len() / 2 + 1, hash);
}

/// Makes room for one more key under the bound of `most`, at least 1: forgets the expired logs, and if that does not
/// free an eighth of them, also those with the fewest entries, the one longest unused among equals, so that a flood of
/// fresh keys pushes out itself before it pushes out a log that holds a denial.
pub(crate) fn make_room(table: &mut Table, hash: impl Fn(&Key) -> u64, now: Timestamp, most: usize) {
    let mut kept: Vec<Slot> = mem::take(table).into_slots().filter(|slot| !has_expired(&slot.log, now)).collect();
    let goal = most - most.div_ceil(8);
    if kept.len() > goal {
        let worth = |Slot { log, .. }: &Slot| (log.len(), log.newest());
        let evicted = kept.len() - goal;
        if evicted < kept.len() {
            kept.select_nth_unstable_by_key(evicted, worth);
        }
        kept.drain(..evicted);
    }
    table.reserve(kept.len() + 1, &hash);
    for slot in kept {
        table.insert(hash(&slot.key), slot, &hash);
    }
}

/// Whether nothing in the log counts any more.
pub(crate) fn has_expired(log: &Log, now: Timestamp) -> bool {
    log.newest().is_none_or(|newest| log.keep().is_over(newest, now))
}
